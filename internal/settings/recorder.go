package settings

import (
	"cmp"
	"path/filepath"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// RecorderRole runs a recorder of sessions. It needs no API server.
const RecorderRole Role = "recorder"

// Recorder configures the recorder. Its node uses the settings of Tailnet, except for the name. Plane.Capability and Plane.Roles say who may
// read recordings.
type Recorder struct {
	Hostname  string   `yaml:"hostname,omitempty"`  // of its node; "": recorder
	Port      uint16   `yaml:"port"`                // where proxies send recordings, over HTTP/2 without TLS; WireGuard encrypts
	ProxyTags []string `yaml:"proxyTags,omitempty"` // tags of the nodes that may send recordings; required
	// Planes are tags of the nodes of operator planes. They may list and read all recordings, and their own roles say who may ask them.
	Planes []string `yaml:"planes,omitempty,flow"`
	Dir    string   `yaml:"dir,omitempty"` // directory of the recordings, on a volume; required

	// Bounds of the directory.
	MaxMiB        int      `yaml:"maxMiB"`           // of all recordings
	MaxOneMiB     int      `yaml:"maxOneMiB"`        // of one recording
	MaxRecordings int      `yaml:"maxRecordings"`    // number of recordings
	MaxLive       int      `yaml:"maxLive"`          // recordings at the same time
	MaxAge        Duration `yaml:"maxAge,omitempty"` // older recordings are deleted; 0 keeps them until there is no room
	Keep          Duration `yaml:"keep"`             // younger recordings are never deleted to make room
}

func defaultRecorder() Recorder {
	return Recorder{Port: 80, MaxMiB: 10 << 10, MaxOneMiB: 1 << 10, MaxRecordings: 100_000, MaxLive: 1000, Keep: Duration(24 * time.Hour)}
}

// RecorderHostname returns the requested name of the recorder's node.
func (f File) RecorderHostname() string { return cmp.Or(f.Recorder.Hostname, "recorder") }

// RecorderPolicy returns the policy for access.DecidePlane at the recorder.
func (f File) RecorderPolicy() access.PlanePolicy {
	p := f.PlanePolicy()
	for _, tag := range f.Recorder.Planes {
		p.Planes = append(p.Planes, access.Tag(tag))
	}
	return p
}

// validateRecorder reports the errors of the settings that the recorder reads.
func (f File) validateRecorder(v *validation) {
	r := f.Recorder
	v.failIf(!label.MatchString(f.RecorderHostname()), "recorder.hostname: %q is not a DNS label", f.RecorderHostname())
	v.failIf(r.Port == 0, "recorder.port is 0")
	v.failIf(r.Port == f.Tailnet.Port, "recorder.port and tailnet.port are both %d; people read recordings at tailnet.port", r.Port)
	v.failIf(len(r.ProxyTags) == 0, "recorder.proxyTags is missing: list the tags of the access proxies, such as [tag:tailplane]")
	for _, tag := range r.ProxyTags {
		v.failIf(!strings.HasPrefix(tag, "tag:"), "recorder.proxyTags: %q does not begin with tag:", tag)
	}
	for _, tag := range r.Planes {
		v.failIf(!strings.HasPrefix(tag, "tag:") || len(tag) == len("tag:"), "recorder.planes: %q is not a tag such as tag:plane", tag)
	}
	v.failIf(!filepath.IsAbs(r.Dir), "recorder.dir: %q is not an absolute path", r.Dir)
	for name, n := range map[string]int{"maxMiB": r.MaxMiB, "maxOneMiB": r.MaxOneMiB, "maxRecordings": r.MaxRecordings, "maxLive": r.MaxLive} {
		v.failIf(n < 1, "recorder.%s: %d is less than 1", name, n)
	}
	v.failIf(r.MaxOneMiB > r.MaxMiB, "recorder.maxOneMiB: %d is more than recorder.maxMiB (%d)", r.MaxOneMiB, r.MaxMiB)
	v.failIf(r.Keep == 0, "recorder.keep is 0: a caller could delete the traces of an action by producing output")
	v.failIf(r.MaxAge != 0 && r.MaxAge < r.Keep, "recorder.maxAge: %v is below recorder.keep (%v)", r.MaxAge, r.Keep)
	f.Tailnet.validate(v)
	// The recorder's account has no right in the cluster.
	v.failIf(f.Tailnet.StateSecret != "", "tailnet.stateSecret: a recorder keeps the keys of its node in tailnet.stateDir")
	v.failIf(f.Audit.KeySecret != "", "audit.keySecret: a recorder keeps the key of its audit log in tailnet.stateDir")
	v.failIf(f.Audit.File == "", "audit.file is empty; use - for standard output")
	v.failIf(f.Plane.Identity.Mode != Whois, "plane.identity.mode: a recorder identifies callers by the tailnet (%s)", Whois)
	for i, h := range f.Plane.Roles {
		_, err := h.holder()
		v.failIf(err != nil, "plane.roles[%d]: %v", i, err)
	}
}
