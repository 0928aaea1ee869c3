"""What replicas share by the bus: notifications, questions, notices, tasks, limits and recent calls.

Enter at each file, one a subject. `feature` puts them into the slots of the host.
"""
