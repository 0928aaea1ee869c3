"""Send signed messages to webhooks by Standard Webhooks: secrets, challenges, deliveries and their retries.

Enter at `DeliveryQueue` (delivery_queue.py) with an `Outbox` (outbox.py), and at `EndpointVerifier` (challenge.py). It
imports no method, no store and no session.
"""
