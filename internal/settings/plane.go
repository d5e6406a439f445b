package settings

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
)

// PlaneRole runs the operator plane.
const PlaneRole Role = "plane"

// Plane configures the operator plane. Its node uses the settings of Tailnet, except for the name
// and the settings in Identity.
type Plane struct {
	Enabled    bool          `yaml:"enabled"` // run the plane in the role all; the role plane ignores it
	Identity   PlaneIdentity `yaml:"identity"`
	Capability string        `yaml:"capability"` // grants of this capability give roles
	Contact    string        `yaml:"contact"`    // contact for role requests, shown to callers without a role
	// EmailDomains are the domains for which entries "*@domain" among the members of an
	// organisation count. Empty: no such entry counts.
	EmailDomains []string      `yaml:"emailDomains"`
	Roles        []PlaneHolder `yaml:"roles"` // in addition to the roles from grants and organisations
	Exposures    []Exposure    `yaml:"exposures,omitempty"`
	GitOps       GitOps        `yaml:"gitops"`
	Logs         PlaneLogs     `yaml:"logs"`
	Prometheus   Prometheus    `yaml:"prometheus"`
	// AccessProxies are the URLs of more access proxies whose open streams the plane shows: of other clusters, and of each replica behind a
	// service, such as https://prod-us-api.example.ts.net. Each must have a tag of the plane's node in proxy.planes.
	AccessProxies []string `yaml:"accessProxies,omitempty"`
	// Recorder is the URL of the recorder whose recordings the plane lists and plays, such as https://recorder.example.ts.net. It must have a
	// tag of the plane's node in recorder.planes.
	Recorder string `yaml:"recorder,omitempty"`
}

// Prometheus configures the source of metrics over time. Without a URL, the plane shows none.
type Prometheus struct {
	URL string `yaml:"url"` // http://prometheus.monitoring.svc:9090
}

func (p Prometheus) isValid() bool {
	u, err := url.Parse(p.URL)
	return p.URL == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil &&
		u.RawQuery == "" && u.Fragment == ""
}

// PlaneLogs sets whether the plane shows the logs of runners. It needs the right to read the logs
// of pods.
type PlaneLogs struct {
	Enabled bool `yaml:"enabled"`
}

// A PlaneHolder is a person who has a role through these settings.
type PlaneHolder struct {
	Login string `yaml:"login"`
	// UserID, optional, is the ID of the person's user on the control server. With it, another user who gets the login does not get
	// the role. It is required with tailnet.controlURL, where one person can have the login of another.
	UserID string   `yaml:"userID,omitempty"`
	Role   string   `yaml:"role"`           // viewer, operator, org-admin or platform-admin
	Orgs   []string `yaml:"orgs,omitempty"` // "*": all; a platform-admin always has all
}

func defaultPlane() Plane {
	return Plane{Identity: PlaneIdentity{Mode: Whois, Hostname: "dashboard"}, Capability: "tailplane.dev/cap/plane"}
}

// validatePlane reports the errors of all settings that the plane reads.
func (f File) validatePlane(v *validation) {
	p, s := f.Plane, f.Signin
	p.Identity.validate(v)
	p.validateExposures(v)
	p.GitOps.validate(v)
	f.Fleet.validateApproval(v)
	hosts := map[string]bool{}
	for _, a := range p.AccessProxies {
		host := hostOf(a)
		v.failIf(host == "" || !strings.HasPrefix(a, "https:"), "plane.accessProxies: %q is not a URL such as https://prod-eu-api.example.ts.net", a)
		v.failIf(host != "" && hosts[host], "plane.accessProxies: %q is listed twice", a)
		hosts[host] = true
	}
	v.failIf(p.Recorder != "" && hostOf(p.Recorder) == "", "plane.recorder: %q is not a URL such as https://recorder.example.ts.net", p.Recorder)
	v.failIf(!p.Prometheus.isValid(), "plane.prometheus.url is not a URL such as http://prometheus.monitoring.svc:9090")
	if domain, path, ok := strings.Cut(p.Capability, "/"); !ok || !strings.Contains(domain, ".") || path == "" || strings.ContainsAny(p.Capability, " \t\n") {
		v.fail("plane.capability: %q is not the name of a capability such as tailplane.dev/cap/plane", p.Capability)
	}
	v.failIf(p.Capability == s.Capability,
		"plane.capability and signin.capability are both %q: their rules have different forms", p.Capability)
	v.failIf(len(p.Contact) > 200 || strings.ContainsFunc(p.Contact, func(r rune) bool { return r < ' ' || r == 0x7f }),
		"plane.contact: the limit is 200 characters on one line")
	for _, d := range p.EmailDomains {
		_, err := access.ParseEmailDomain(d)
		v.failIf(err != nil, "plane.emailDomains: %w", err)
	}
	for i, h := range p.Roles {
		_, err := h.holder()
		v.failIf(err != nil, "plane.roles: entry %d: %w", i+1, err)
		v.failIf(h.UserID != "" && p.Identity.Mode != Whois && p.Identity.Mode != OIDC,
			"plane.roles: entry %d: in the mode %s the plane does not learn user IDs, so an entry with a userID never applies", i+1, p.Identity.Mode)
		v.failIf(h.UserID == "" && f.Tailnet.ControlURL != "" && p.Identity.Mode != Dev,
			"plane.roles: entry %d: with tailnet.controlURL, set the userID of %q beside the login (headscale users list shows it, and the audit log as actor.userId), "+
				"because another user of that control server can have the same login", i+1, h.Login)
	}
	v.failIf(s.Namespace == s.SystemNamespace || !label.MatchString(s.Namespace) || !label.MatchString(s.SystemNamespace),
		"signin.namespace (%q) and signin.systemNamespace (%q) must be the names of two namespaces", s.Namespace, s.SystemNamespace)
	f.Tailnet.validate(v)
	v.failIf(f.Audit.File == "", "audit.file is empty; use - for standard output")
}

// hostOf returns the host of the URL of a server without a path, or "" if s is none.
func hostOf(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Path != "" && u.Path != "/" || u.User != nil || u.RawQuery != "" {
		return ""
	}
	return u.Hostname()
}

func (h PlaneHolder) holder() (access.Holder, error) {
	login, err := access.ParseLogin(h.Login)
	if err != nil {
		return access.Holder{}, err
	}
	if strings.HasPrefix(h.Login, "*") {
		return access.Holder{}, fmt.Errorf("%q: list each login", h.Login)
	}
	if strings.ContainsFunc(h.UserID, func(r rune) bool { return r < '0' || r > '9' }) || len(h.UserID) > 19 {
		return access.Holder{}, fmt.Errorf("userID %.40q is not a number", h.UserID)
	}
	name, err := access.ParsePlaneRoleName(h.Role)
	if err != nil {
		return access.Holder{}, err
	}
	orgs := h.Orgs
	if name == access.PlatformAdmin && len(orgs) == 0 {
		orgs = []string{access.AllOrgs}
	}
	if orgs, err = access.ParseOrgs(orgs); err != nil {
		return access.Holder{}, err
	}
	return access.Holder{Login: login, UserID: h.UserID, Role: access.PlaneRole{Name: name, Orgs: orgs}}, nil
}

// PlanePolicy returns the policy for access.DecidePlane, without the organisations, which come from
// enrollments.
func (f File) PlanePolicy() access.PlanePolicy {
	p := access.PlanePolicy{Capability: f.Plane.Capability, Contact: f.Plane.Contact}
	if f.Plane.Identity.Mode == Whois && len(f.Tailnet.Tags) > 0 { // grants may name any of them
		p.Tag = f.Tailnet.Tags[0]
	}
	for _, d := range f.Plane.EmailDomains {
		if d, err := access.ParseEmailDomain(d); err == nil && !slices.Contains(p.EmailDomains, d) {
			p.EmailDomains = append(p.EmailDomains, d)
		}
	}
	for _, h := range f.Plane.Roles {
		if holder, err := h.holder(); err == nil { // Validate reports the error
			p.Settings = append(p.Settings, holder)
		}
	}
	return p
}
