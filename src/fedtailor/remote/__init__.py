"""Federations of machines that keep their own data, with Flower as the carrier.

The coordinator trains as a simulation does, except that its executor asks clients over
a transport; each client answers from its own file and its own states. Nothing here
imports Flower (`flwr`) or `cryptography` before it is needed; both come with the extra
`flower`.

What a federation is:

* `job`, `job_template`, `table`, `statistics`, `examples`, `plan`: what is trained, and
  how a client's file becomes examples.
* `kit`, `keys`, `secret`, `client_store`: what each machine has on its disk.

What travels:

* `messages`, `wire`, `held`: one exchange with one client, as bytes and back, with the
  checks of what arrives.
* `transport`, `waits`: an exchange with several clients, and how long it may last.
* `secure_sums`, `masks`, `sum_client`, `sum_server`, `hidden_updates`: sums of vectors
  of which the coordinator sees none.

Who runs it:

* `coordinate`, `executor`: the coordinator's side of a training.
* `job_work`, `work`: a client's side.
* `service`, `flower`, `flower_server`, `grid_answers`, `flower_client`, `superlink`,
  `processes`, `flower_app`: both sides as processes that talk over Flower's SuperLink.
* `demo`: all of it on one machine, beside the simulation.
"""
