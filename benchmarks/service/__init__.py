"""What `make bench-rpc` starts and drives: a Rondel server, a bare echo, and clients of both."""
