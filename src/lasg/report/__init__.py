"""Pictures, pages and texts of stored runs. Public: `plots`, `page`; extension point: a `sinks.Sink` of your own."""
