"""What a run did: probes, waves, profiles, reports, and where a result differs."""
