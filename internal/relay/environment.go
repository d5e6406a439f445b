package relay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// An Environment is the configuration of a relay in the environment of its pod. The variables are the
// same as those of Tailscale's proxy image, so that one image can replace the other.
type Environment struct {
	Pod, UID  string
	IPs       []netip.Addr // the pod's primary address is first
	Secret    string       // stores the node's state
	Hostname  string       // optional
	ConfigDir string       // optional: directory of versioned configuration files
	Health    string       // host:port
	Debug     string       // host:port on loopback
	Mount     string       // optional: directory where the ConfigMap is mounted
	Group     string       // the pod's name without its ordinal
	Ordinal   string
	Ingress   bool
}

// ConfigMap returns the name of the group's ConfigMap.
func (c Environment) ConfigMap() string {
	if c.Ingress {
		return c.Group + "-ingress-config"
	}
	return c.Group + "-egress-config"
}

// ConfigSecret returns the name of the Secret that may contain an auth key.
func (c Environment) ConfigSecret() string { return c.Pod + "-config" }

// redirectVariables are variables that redirect traffic in Tailscale's image. A relay that ignored one
// would send traffic to the wrong place, so they are errors.
var redirectVariables = []string{
	"TS_DEST_IP",
	"TS_EXPERIMENTAL_DEST_DNS_NAME",
	"TS_TAILNET_TARGET_IP",
	"TS_TAILNET_TARGET_FQDN",
	"TS_ROUTES",
	"TS_EXTRA_ARGS",
	"TS_TAILSCALED_EXTRA_ARGS",
	"TS_SOCKS5_SERVER",
	"TS_OUTBOUND_HTTP_PROXY_LISTEN",
}

// conflictingVariables are variables that must not be set together with a versioned configuration.
var conflictingVariables = []string{"TS_AUTHKEY", "TS_AUTH_KEY", "TS_HOSTNAME", "TS_ACCEPT_DNS"}

// ParseEnvironment parses the environment. The error contains every mistake in it.
func ParseEnvironment(getenv func(string) string) (Environment, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	c := Environment{
		Pod:       getenv("POD_NAME"),
		UID:       getenv("POD_UID"),
		Hostname:  getenv("TS_HOSTNAME"),
		ConfigDir: getenv("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR"),
		Mount:     getenv("TS_EGRESS_PROXIES_CONFIG_PATH"),
		Secret:    cmp.Or(getenv("TS_KUBE_SECRET"), getenv("POD_NAME")),
	}
	for _, v := range redirectVariables {
		if getenv(v) != "" {
			bad("%s is set, but a relay does not support it: use the group's ConfigMap", v)
		}
	}
	if c.ConfigDir != "" {
		for _, v := range conflictingVariables {
			if getenv(v) != "" {
				bad("%s is set together with TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR, whose files already configure it", v)
			}
		}
	}
	if v := getenv("TS_USERSPACE"); v != "" && v != "true" && v != "1" {
		bad("TS_USERSPACE=%.20q: a relay runs only in user space, without privileges", v)
	}
	cut := strings.LastIndexByte(c.Pod, '-')
	if cut <= 0 || strings.Trim(c.Pod[cut+1:], "0123456789") != "" || c.Pod[cut+1:] == "" {
		bad("POD_NAME=%.60q is not the name of a pod of a StatefulSet", c.Pod)
	} else {
		c.Group, c.Ordinal = c.Pod[:cut], c.Pod[cut+1:]
	}
	if c.UID == "" {
		bad("POD_UID is missing: a status must name its pod")
	}
	if v := getenv("TS_STATE"); v != "" && v != "kube:"+c.Secret {
		bad("TS_STATE=%.80q: a relay keeps its state in the Secret %s", v, c.Secret)
	}
	c.IPs = podIPs(getenv, bad)
	if len(c.IPs) == 0 {
		bad("POD_IP is missing: a relay listens on its pod's own addresses only")
	}
	c.Health, c.Debug = localAddr(getenv, bad, "TS_LOCAL_ADDR_PORT"), localAddr(getenv, bad, "TS_DEBUG_ADDR_PORT")
	if at, err := netip.ParseAddrPort(c.Debug); err == nil && !at.Addr().IsLoopback() {
		bad(
			"TS_DEBUG_ADDR_PORT=%s: the address must be a loopback address, so that only users with port-forward access get profiles",
			c.Debug,
		)
	}
	if c.Health == "" && len(c.IPs) > 0 {
		c.Health = netip.AddrPortFrom(c.IPs[0], 9002).String()
	}
	serve := getenv("TS_SERVE_CONFIG")
	switch {
	case serve != "" && c.Mount != "":
		bad("TS_SERVE_CONFIG and TS_EGRESS_PROXIES_CONFIG_PATH are both set: a relay has only one direction")
	case serve != "":
		c.Ingress = true
		if i := strings.LastIndexByte(serve, '/'); i > 0 {
			c.Mount = serve[:i]
		}
	case c.Mount == "":
		bad("neither TS_EGRESS_PROXIES_CONFIG_PATH nor TS_SERVE_CONFIG is set: a relay needs one of them")
	}
	return c, errors.Join(errs...)
}

// podIPs returns the addresses of the pod without duplicates. POD_IP is first.
func podIPs(getenv func(string) string, bad func(format string, args ...any)) (all []netip.Addr) {
	for s := range strings.SplitSeq(getenv("POD_IP")+","+getenv("POD_IPS"), ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil || a.IsUnspecified() || a.Zone() != "" {
			bad("POD_IP or POD_IPS: %.60q is not the address of a pod", s)
		} else if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// localAddr parses host:port. It also accepts "::1:9002", which $(POD_IP):9002 produces for IPv6.
func localAddr(getenv func(string) string, bad func(format string, args ...any), variable string) string {
	s := getenv(variable)
	at, err := netip.ParseAddrPort(s)
	if i := strings.LastIndexByte(s, ':'); err != nil && i > 0 {
		at, err = netip.ParseAddrPort("[" + strings.Trim(s[:i], "[]") + "]" + s[i:])
	}
	switch {
	case s == "":
		return ""
	case err != nil:
		bad("%s=%.60q is not an address and a port", variable, s)
		return ""
	}
	return at.String()
}
