"""Real federations: the server object of the simulator, driven by messages that Flower carries.

server_app, client_app   the Flower apps of the server and of a client
config                   settings of a run and of a deployment, from a run config
private_data             runs whose clients hold examples that the server does not have
grid, wire, protocol     messages: Flower's grid, checked arrays and fields, tickets and replies
server                   the driver, its journaled state, registration, deadlines and statistics
client                   a client's training, key and memory
local                    a whole federation on one machine
node, fork_server, polling   Flower's processes with shorter waits
"""
