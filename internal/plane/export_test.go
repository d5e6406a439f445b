package plane

// Exports for the tests, which are in an external package because plane/metrics imports this one.
var (
	QuotePromQL    = quotePromQL
	MatchOneOf     = matchOneOf
	SeriesQueries  = seriesQueries
	MetricsWindows = metricsWindows
)

// Cached returns the number of cached results.
func (d *MetricsService) Cached() int {
	d.cache.mu.Lock()
	defer d.cache.mu.Unlock()
	return len(d.cache.all)
}
