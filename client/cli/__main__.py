"""``python -m rondel.client.cli``: the same as the ``rondel`` command."""

from rondel.client.cli.main import main

if __name__ == "__main__":
    main()
