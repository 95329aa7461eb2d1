"""A fleet of devices that learns as one: the sums that each has learned are added up, and handed back to all.

    sums     what leaves a device: the difference of A and B, how it is packed, and what is refused
    member   a device's side: what it has sent, and what of that is confirmed
    roll     the server's side: who sent what; pool: the sums of all

Under `deco+` and `slda` what is learned are sums over frames, so the model made of merged sums is the one that a single
device would have which had seen all streams (for labelled clients: AFL, He et al., CVPR 2025).
"""
