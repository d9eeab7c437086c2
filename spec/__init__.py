"""The protocol of the control plane as a model that can be read in one sitting and explored completely.

`state` says what there is, `model` what can happen, `invariants` what must hold, `liveness` what must
come about. `explore` visits every state within bounds, `walk` samples beyond them, and `sometimes`
lists the situations that must have been met on the way. Standard library only.
"""
