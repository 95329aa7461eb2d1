"""What a fleet learns, and what it costs: real learners, guards and pools, whose frames went through the network once.

observe     what learners see in the images of a folder, kept in a file for the experiments
merge       merged devices beside one device that saw all streams
hostile     devices that send harm, with the pool's checks and without
numbers     fp32, fp16 and int8: bytes and accuracy
noise       Gaussian noise for (ε, δ): the accuracy it costs
union       `paper`: buffers of all devices condensed into the server's
scale       Flower's simulation of up to a thousand devices, and the pool alone with a hundred thousand differences
secure      Flower's SecAgg+: the server learns the sum only

python -m deco_benchmarks.fleet COMMAND --help
"""
