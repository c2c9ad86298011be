"""Federations of machines that keep their own data, with Flower as the transport.

The coordinator trains as in a simulation, except that its executor sends requests to
clients on other machines. Each client has its own file of examples and its own states.
Flower (`flwr`) and `cryptography` are imported only when they are needed; the extra
`flower` installs both.

* `job`: what is trained, how a client's file becomes examples, what all agree on.
* `keys`: the files of each machine: kits, certificates, secrets.
* `wire`: requests and answers, their encoding and checks, and how they travel.
* `sums`: secure aggregation.
* `client`: what a client answers, under its own policy, and its account of it.
* `server`: training at the coordinator.
* `flower`: the transport: Flower's SuperLink, and both its sides.
* `service`: the processes of both sides; `flower_app`: the same as a plain Flower app.
* `simulation`: a job with simulated clients; `demo`: a federation on one machine beside
  its simulation.
"""
