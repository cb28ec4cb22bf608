"""The asyncio client: shells with awaits over the same steps as the blocking one."""
