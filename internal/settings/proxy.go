package settings

import (
	"cmp"
	"time"
)

// ProxyRole runs the access proxy.
const ProxyRole Role = "proxy"

// AccessProxy configures the access proxy. Its node uses the settings of Tailnet, except for the name.
type AccessProxy struct {
	Enabled  bool     `yaml:"enabled"`            // run the proxy in the role all; the role proxy ignores it
	Hostname string   `yaml:"hostname,omitempty"` // of its node; "": <cluster.name>-api
	Drain    Duration `yaml:"drain"`              // how long open streams may continue after the proxy starts to stop
	// Requests selects the requests that have an audit entry of their own: "all", or "sums", where one entry a minute
	// sums up equal routine reads.
	Requests RecordedRequests `yaml:"requests"`
}

// RecordedRequests are the requests through the access proxy that have an audit entry of their own.
type RecordedRequests string

// The values of RecordedRequests.
const (
	RecordSums RecordedRequests = "sums"
	RecordAll  RecordedRequests = "all"
)

func defaultProxy() AccessProxy {
	return AccessProxy{Drain: Duration(5 * time.Minute), Requests: RecordSums}
}

// ProxyHostname returns the requested name of the access proxy's node.
func (f File) ProxyHostname() string { return cmp.Or(f.Proxy.Hostname, f.Cluster.Name+"-api") }

// validateProxy reports the errors of the settings that only the proxy reads.
func (f File) validateProxy(v *validation) {
	v.failIf(!label.MatchString(f.ProxyHostname()), "proxy.hostname: %q is not a DNS label", f.ProxyHostname())
	v.failIf(!f.Proxy.Drain.isBetween(0, time.Hour), "proxy.drain: %v is not between 0 and 1h", f.Proxy.Drain)
	v.failIf(f.Proxy.Requests != RecordSums && f.Proxy.Requests != RecordAll, "proxy.requests: %q is neither sums nor all", f.Proxy.Requests)
}
