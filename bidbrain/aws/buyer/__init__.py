"""The process that buys on EC2: the one holder of the right to buy, asked by a job's driver through a local socket."""
