"""Where a request goes: the engine behind this frontend.

replica.Replica   one engine process under supervision
ticket.Ticket     what a client holds of its request there
"""
