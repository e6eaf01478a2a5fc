#!/bin/sh
# Creates the user, the group and the folder of pages; who starts the agent is the administrator.
systemd-sysusers lockstep-agent.conf 2>/dev/null || true
systemd-tmpfiles --create lockstep-agent.conf 2>/dev/null || true
