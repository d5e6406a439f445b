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
	Enabled  bool   `yaml:"enabled"`            // run the proxy in the role all; the role proxy ignores it
	Hostname string `yaml:"hostname,omitempty"` // of its node; "": <cluster.name>-api
	// Service is a service of the tailnet, such as svc:prod-eu-api, that all replicas of the proxy host: they share its
	// name, and one of them takes over if another one goes. "": clients reach each replica under the name of its node.
	Service string   `yaml:"service,omitempty"`
	Drain   Duration `yaml:"drain"` // how long open streams may continue after the proxy starts to stop
	// Requests selects the requests that have an audit entry of their own: "all", or "sums", where one entry a minute
	// sums up equal routine reads.
	Requests  RecordedRequests `yaml:"requests"`
	Recording Recording        `yaml:"recording,omitempty"`
	Limits    ProxyLimits      `yaml:"limits"`
	Access    ProxyAccess      `yaml:"access,omitempty"`
	Tags      []string         `yaml:"tags,omitempty,flow"` // of its node; empty: tailnet.tags
	// Planes are tags of the nodes of operator planes. They may list and cut the streams of all people, and their own roles
	// say who may ask them. There is no default.
	Planes []string `yaml:"planes,omitempty,flow"`
}

// ProxyLimits are what one device may use of the access proxy at the same time. 0 means no limit.
type ProxyLimits struct {
	Connections int `yaml:"connections"` // from one address of a node
	Requests    int `yaml:"requests"`    // without streams
	Streams     int `yaml:"streams"`     // watches, followed logs, exec, attach and port-forward
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
	return AccessProxy{Drain: Duration(5 * time.Minute), Requests: RecordSums,
		Limits: ProxyLimits{Connections: 1000, Requests: 400, Streams: 2000}}
}

// ProxyHostname returns the requested name of the access proxy's node.
func (f File) ProxyHostname() string { return cmp.Or(f.Proxy.Hostname, f.Cluster.Name+"-api") }

// ProxyName returns the label of the name under which clients reach the access proxy: of its service, or of its node.
func (f File) ProxyName() string {
	if label, ok := strings.CutPrefix(f.Proxy.Service, servicePrefix); ok {
		return label
	}
	return f.ProxyHostname()
}

// servicePrefix begins the names of the services of a tailnet.
const servicePrefix = "svc:"

// validateProxy reports the errors of the settings that only the proxy reads.
func (f File) validateProxy(v *validation) {
	v.failIf(!label.MatchString(f.ProxyHostname()), "proxy.hostname: %q is not a DNS label", f.ProxyHostname())
	service, ok := strings.CutPrefix(f.Proxy.Service, servicePrefix)
	v.failIf(f.Proxy.Service != "" && (!ok || !label.MatchString(service)), "proxy.service: %q is not a service such as svc:prod-eu-api", f.Proxy.Service)
	v.failIf(f.Proxy.Service != "" && service == f.ProxyHostname(), "proxy.service: %q has the name of the proxy's node: set another proxy.hostname", f.Proxy.Service)
	v.failIf(f.Proxy.Service != "" && len(f.Tailnet.Tags) == 0, "proxy.service: only tagged nodes can host a service: set tailnet.tags")
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
	l := f.Proxy.Limits
	v.failIf(min(l.Connections, l.Requests, l.Streams) < 0, "proxy.limits: a limit is negative; 0 means no limit")
	for _, t := range f.Proxy.Planes {
		v.failIf(!strings.HasPrefix(t, "tag:") || len(t) == len("tag:"), "proxy.planes: %q is not a tag such as tag:plane", t)
	}
	v.failIf(f.Proxy.Requests != RecordSums && f.Proxy.Requests != RecordAll, "proxy.requests: %q is neither sums nor all", f.Proxy.Requests)
}
