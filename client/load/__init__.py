"""A load generator: streams used at a rate that the server does not set, and their answers checked.

plan.py       what is asked for        schedule.py   when operations are to be sent
workload.py   what a stream does       arrays.py     the q, k and v that it sends
runner.py     all processes of a run   crew.py       one of them, seen from outside
worker.py     one of them, from inside job.py        what it is to do, and what it tells
lane.py       a batch's queue          player.py     the lives of a batch of streams
voice.py      one stream of it
check.py      answers compared beside the load, with those of twin.py
faults.py     what is done on purpose  connection.py a client that can be broken off
recorder.py   what is measured, in the histograms of histogram.py; result.py: what comes of it
"""
