"""Federations of machines that keep their own data, with Flower as the transport.

The coordinator trains as in a simulation, except that its executor sends requests to
clients on other machines. Each client has its own file of examples and its own states.
Flower (`flwr`) and `cryptography` are imported only when they are needed; the extra
`flower` installs both.

What a federation is:

* `job`, `job_template`, `table`, `statistics`, `examples`, `plan`: what is trained, and
  how a client's file becomes examples.
* `kit`, `keys`, `secret`, `client_store`: the files of each machine.

What is sent:

* `messages`, `wire`, `vector_cache`: the encoding of requests and answers, and their
  checks.
* `transport`, `waits`: an exchange with several clients, and how long it may take.
* `secure_sums`, `masks`, `sum_client`, `sum_server`, `hidden_updates`: secure
  aggregation.

What runs:

* `coordinate`, `executor`: training, at the coordinator.
* `job_work`, `work`: tasks, at a client.
* `service`, `flower`, `flower_server`, `grid_answers`, `flower_client`, `superlink`,
  `processes`, `flower_app`: the processes of both, which communicate by Flower.
* `demo`: a federation on one machine, compared with its simulation.
"""
