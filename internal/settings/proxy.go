package settings

import (
	"cmp"
	"net"
	"path/filepath"
	"strings"
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
	Requests  RecordedRequests `yaml:"requests"`
	Recording Recording        `yaml:"recording,omitempty"`
	Access    ProxyAccess      `yaml:"access,omitempty"`
	Tags      []string         `yaml:"tags,omitempty,flow"` // of its node; empty: tailnet.tags
}

// Recording configures where the recordings go that rules of the policy ask for: one of Dir and Recorder.
type Recording struct {
	Dir      string `yaml:"dir,omitempty"`      // a directory on a volume
	Recorder string `yaml:"recorder,omitempty"` // host:port of a recorder on the tailnet, Tailscale's or ours
	Tag      string `yaml:"tag,omitempty"`      // which the recorder's node must have; required with recorder
	Input    bool   `yaml:"input,omitempty"`    // record what people type too
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
	f.Proxy.Access.validate(v)
	for _, tag := range f.Proxy.Tags {
		v.failIf(!strings.HasPrefix(tag, "tag:"), "proxy.tags: %q does not begin with tag:", tag)
	}
	r := f.Proxy.Recording
	_, _, err := net.SplitHostPort(r.Recorder)
	v.failIf(r.Dir != "" && r.Recorder != "", "proxy.recording: dir and recorder are both set; set only one")
	v.failIf(r.Dir != "" && !filepath.IsAbs(r.Dir), "proxy.recording.dir: %q is not an absolute path", r.Dir)
	v.failIf(r.Recorder != "" && err != nil, "proxy.recording.recorder: %q is not an address such as recorder:80", r.Recorder)
	v.failIf(r.Recorder != "" && !strings.HasPrefix(r.Tag, "tag:"), "proxy.recording.tag: %q does not begin with tag:; any node could take the recorder's name without it", r.Tag)
	v.failIf(f.Proxy.Requests != RecordSums && f.Proxy.Requests != RecordAll, "proxy.requests: %q is neither sums nor all", f.Proxy.Requests)
}
