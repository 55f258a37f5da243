"""Text from a server's language model, with asyncio: start `rondel serve --model smollm2-135m`, then

python examples/stream_text.py [host:port] [question]
"""

import asyncio
import sys

from rondel import AsyncGenerationClient


async def main(target: str, question: str) -> None:
    """Print the answer as it comes."""
    async with (
        AsyncGenerationClient(target) as client,
        client.generate([("user", question)], max_tokens=128, window=1024) as generation,
    ):
        async for piece in generation.text():
            print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7411"
    question = sys.argv[2] if len(sys.argv) > 2 else "What is the capital of France?"
    asyncio.run(main(target, question))
