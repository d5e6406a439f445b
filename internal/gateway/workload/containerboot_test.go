package workload_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"tailscale.com/ipn/conffile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/workload"
)

// bootRules are those of configFromEnv and validate in containerboot's settings.go.
func bootRules(env map[string]string) error {
	var errs []error
	bad := func(wrong bool, what string) {
		if wrong {
			errs = append(errs, errors.New(what))
		}
	}
	user, err := strconv.ParseBool(env["TS_USERSPACE"])
	bad(err != nil, "TS_USERSPACE")
	_, err = netip.ParseAddrPort(bracketed(env))
	bad(err != nil, "TS_LOCAL_ADDR_PORT")
	_, err = netip.ParseAddrPort(env["TS_DEBUG_ADDR_PORT"])
	bad(err != nil, "TS_DEBUG_ADDR_PORT")
	bad(env["TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR"] == "", "nothing says which node to be")
	for _, v := range []string{"TS_AUTHKEY", "TS_AUTH_KEY", "TS_HOSTNAME", "TS_EXTRA_ARGS", "TS_ROUTES", "TS_ACCEPT_DNS", "TS_CLIENT_ID", "TS_CLIENT_SECRET", "TS_ID_TOKEN", "TS_AUDIENCE"} {
		_, set := env[v]
		bad(set, v+" beside TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR")
	}
	for _, v := range []string{"TS_DEST_IP", "TS_EXPERIMENTAL_DEST_DNS_NAME", "TS_TAILNET_TARGET_IP", "TS_TAILNET_TARGET_FQDN", "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS",
		"TS_EXPERIMENTAL_ENABLE_FORWARDING_OPTIMIZATIONS"} {
		bad(user && env[v] != "", v+" with TS_USERSPACE")
	}
	bad(env["TS_ENABLE_HEALTH_CHECK"] == "true" && env["TS_HEALTHCHECK_ADDR_PORT"] != "", "two health ports")
	bad(env["TS_EGRESS_PROXIES_CONFIG_PATH"] != "" && env["TS_KUBE_SECRET"] == "", "TS_EGRESS_PROXIES_CONFIG_PATH without a Secret")
	bad(env["TS_EGRESS_PROXIES_CONFIG_PATH"] != "" && user, "egress in user space: it writes rules of the kernel's firewall")
	bad(env["TS_EGRESS_PROXIES_CONFIG_PATH"] != "" && env["TS_SERVE_CONFIG"] != "", "both ways")
	bad(len(strings.Split(env["POD_IPS"], ",")) > 2, "POD_IPS")
	return errors.Join(errs...)
}

// bracketed does what containerboot does to an IPv6 address without brackets.
func bracketed(env map[string]string) string {
	s := env["TS_LOCAL_ADDR_PORT"]
	if ip := env["POD_IPS"]; strings.Contains(ip, ":") && !strings.ContainsAny(s, "[]") {
		return strings.Replace(s, ip, "["+ip+"]", 1)
	}
	return s
}

// GTW-24: Tailscale's own image takes its pod as it is rendered, knows every variable
// that is set, and finds its files where it looks.
func TestContainerboot(t *testing.T) {
	known := bootVariables(t)
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		in := sample(r)
		in.Group.Spec.Runtime = v1alpha1.RuntimeContainerboot
		o, err := workload.Render(&in.Group, in.Settings, in.Plan)
		if err != nil {
			t.Fatal(err)
		}
		c := o.StatefulSet.Spec.Template.Spec.Containers[0]
		for _, v := range c.Env {
			if !known[v.Name] {
				t.Errorf("%s is no variable of containerboot", v.Name)
			}
		}
		for i, s := range o.State {
			for _, ip := range []string{"10.1.2.3", "fd00::7"} {
				env := expand(o, s.Name, ip)
				if err := bootRules(env); err != nil {
					t.Fatalf("%s %s: %v", in.Group.Spec.Type, env, err)
				}
				if i < int(workload.Replicas(&in.Group)) && !mounted(o, env["TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR"]+"/"+workload.ConfigFileKey, o.Config[i].Name) {
					t.Errorf("the configuration of %s is not where it is looked for", s.Name)
				}
			}
		}
		// It answers no other path.
		if c.ReadinessProbe.HTTPGet.Path != "/healthz" || c.LivenessProbe != nil || (c.Lifecycle != nil) != (in.Group.Spec.Type == v1alpha1.Egress) ||
			c.Lifecycle != nil && c.Lifecycle.PreStop.HTTPGet.Path != "/internal-egress-services-preshutdown" {
			t.Errorf("it is asked %+v, %+v, %+v", c.ReadinessProbe, c.LivenessProbe, c.Lifecycle)
		}
		if len(c.Args)+len(c.Command) > 0 {
			t.Errorf("it is started as %v %v", c.Command, c.Args)
		}
	}
}

// The rules find what is wrong: each breach is one of them.
func TestContainerbootRulesBite(t *testing.T) {
	in := sample(rand.New(rand.NewPCG(7, 8)))
	in.Group.Spec.Runtime, in.Group.Spec.Type = v1alpha1.RuntimeContainerboot, v1alpha1.Egress
	o, err := workload.Render(&in.Group, in.Settings, in.Plan)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"TS_AUTHKEY": "x", "TS_HOSTNAME": "x", "TS_USERSPACE": "true", "TS_LOCAL_ADDR_PORT": ":9002", "TS_SERVE_CONFIG": "x", "TS_KUBE_SECRET": ""} {
		env := expand(o, "x-0", "10.1.2.3")
		if bootRules(env) != nil {
			t.Fatal(bootRules(env))
		}
		if env[name] = value; bootRules(env) == nil {
			t.Errorf("%s=%s is let pass", name, value)
		}
	}
}

// mounted says whether a path of the container is the configuration file in a Secret.
func mounted(o *workload.Objects, path, secret string) bool {
	p := o.StatefulSet.Spec.Template.Spec
	for _, m := range p.Containers[0].VolumeMounts {
		rest, ok := strings.CutPrefix(path, m.MountPath+"/")
		if !ok {
			continue
		}
		for _, v := range p.Volumes {
			if v.Name != m.Name || v.Projected == nil {
				continue
			}
			for _, s := range v.Projected.Sources {
				if s.Secret.Name == secret && slices.ContainsFunc(s.Secret.Items, func(k corev1.KeyToPath) bool { return k.Path == rest && k.Key == workload.ConfigFileKey }) {
					return true
				}
			}
		}
	}
	return false
}

// bootVariables are the environment variables that stand in containerboot's source
// and in that of the daemon that it starts.
func bootVariables(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "tailscale.com").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "cmd", "containerboot", "*.go"))
	if err != nil || len(files) < 5 {
		t.Fatalf("containerboot's source: %v, %v", files, err)
	}
	name := regexp.MustCompile(`"((?:TS|POD)_[A-Z0-9_]+)"`)
	// Not read by containerboot: TS_STATE stands in the contract of Tailscale's
	// operator, which sets it too.
	known := map[string]bool{"TS_STATE": true}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllSubmatch(b, -1) {
			known[string(m[1])] = true
		}
	}
	return known
}

// The configuration file is one that Tailscale's daemon reads, field by field.
func TestConfigFile(t *testing.T) {
	f := workload.ConfigFile{Hostname: "web-0", ControlURL: "https://control.example", AuthKey: "tskey-auth-x", Services: []string{"svc:web", "svc:api"}}
	for _, f := range []workload.ConfigFile{f, {Hostname: "web-1"}} {
		path := filepath.Join(t.TempDir(), workload.ConfigFileKey)
		if err := os.WriteFile(path, f.JSON(), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := conffile.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		p := c.Parsed
		value := func(s *string) string {
			if s == nil {
				return ""
			}
			return *s
		}
		if value(p.Hostname) != f.Hostname || value(p.ServerURL) != f.ControlURL || value(p.AuthKey) != f.AuthKey || p.AcceptDNS != "false" || p.AcceptRoutes != "true" || p.Locked != "false" ||
			fmt.Sprint(p.AdvertiseServices) != fmt.Sprint(slices.Sorted(slices.Values(f.Services))) {
			t.Errorf("%s is read as %+v", f.JSON(), p)
		}
	}
}
