"""Real federations: the server of a simulation, driven by messages that Flower carries.

server_app, client_app   what a Flower app names
config, private_data     a run config as settings; clients whose examples the server does not have
wire, protocol, grid     messages and their checks; tickets and replies as messages; Flower's grid
server/driver            the loop: pull replies, apply them, hand out tickets, push requests
server/journaled_state   the driver's state; every change is a row of a journal (record/journal) first
server/registration      which nodes are present, and which client is at each
server/open_tickets      which client holds which ticket, by a token
server/deadlines, stats  deadlines learned from a client's visits, back-off; statistics of clients
server/result            result.json and the model
client/                  training of a ticket; the client's key and memory on its own disk
local/                   a whole federation on this machine
polling, node, fork_server   Flower without its long waits
"""
