// Package relay runs `tailplaned relay` as in its pod: as a separate process with exactly the rights of the group's
// account on a real API server. It connects sockets of this machine with real nodes of a loopback tailnet.
package relay

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"text/template"
	"time"

	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const long = 2 * time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until ok returns nil.
func eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	end := time.Now().Add(long)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// policy: relays have tag:relay, may reach tag:svc-web, and people may reach relays.
const policy = `{
	"tagOwners": {"tag:relay": [], "tag:svc-web": [], "tag:other": []},
	"grants": [
		{"src": ["tag:relay"], "dst": ["tag:svc-web"], "ip": ["*"]},
		{"src": ["autogroup:member"], "dst": ["*"], "ip": ["*"]},
	],
}`

// A group holds the objects of one proxy group, as in 6.1 and 6.3 of the contract.
type group struct {
	Name, Namespace string
	Replicas        []int
	Keys            []string // auth keys by ordinal
	Kind            string   // egress or ingress
	Control         string
	Profiles        bool

	cluster *kubetest.Cluster
	net     *tailnettest.Net
}

var objects = template.Must(template.New("").Parse(`
{{- range $i := .Replicas}}
---
apiVersion: v1
kind: Secret
metadata: {name: {{$.Name}}-{{$i}}, namespace: {{$.Namespace}}}
---
apiVersion: v1
kind: Secret
metadata: {name: {{$.Name}}-{{$i}}-config, namespace: {{$.Namespace}}, annotations: {gateway.tailscale.com/authkey-id: "key-{{$i}}"}}
stringData: {authkey: "{{index $.Keys $i}}"}
{{- end}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{.Name}}, namespace: {{.Namespace}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{.Name}}-{{.Kind}}-config, namespace: {{.Namespace}}}
data: {}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: {{.Name}}, namespace: {{.Namespace}}}
rules:
- {apiGroups: [""], resources: [secrets], resourceNames: [{{range $i := .Replicas}}{{$.Name}}-{{$i}}, {{$.Name}}-{{$i}}-config, {{end}}], verbs: [get, update, patch]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [{{.Name}}-{{.Kind}}-config], verbs: [get, watch]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: {{.Name}}, namespace: {{.Namespace}}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{.Name}}}
subjects: [{kind: ServiceAccount, name: {{.Name}}, namespace: {{.Namespace}}}]
`))

// newGroup creates the objects of a group with an auth key for each replica.
func newGroup(t testing.TB, c *kubetest.Cluster, tn *tailnettest.Net, name, kind string, replicas int) *group {
	t.Helper()
	g := &group{Name: name, Namespace: c.Namespace(t), Kind: kind, Control: tn.ControlURL(), cluster: c, net: tn}
	for i := range replicas {
		g.Replicas = append(g.Replicas, i)
		g.Keys = append(g.Keys, tn.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:relay"}}))
	}
	var b bytes.Buffer
	if err := objects.Execute(&b, g); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(within(t), b.Bytes()); err != nil {
		t.Fatal(err)
	}
	return g
}

// configure writes the ConfigMap. relay is relay.json without its part "tailnet".
func (g *group) configure(t testing.TB, egress map[string]any, relay map[string]any) {
	t.Helper()
	if relay == nil {
		relay = map[string]any{}
	}
	relay["tailnet"] = map[string]any{"controlURL": g.Control, "hostnamePrefix": g.Name, "tags": []string{"tag:relay"}}
	data := map[string]string{"hep-pings": fmt.Sprint(3 * len(g.Replicas))}
	for key, v := range map[string]any{"egress-services": egress, "relay.json": relay} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		data[key] = string(b)
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := kubetest.Kubectl(within(t), g.cluster.Kubeconfig, "-n", g.Namespace, "patch", "configmap", g.Name+"-"+g.Kind+"-config", "--type=merge", "-p", string(patch)); code != 0 {
		t.Fatal(stderr)
	}
}

// secret returns a Secret's fields.
func (g *group) secret(t testing.TB, name string) map[string]string {
	t.Helper()
	out, stderr, code := kubetest.Kubectl(within(t), g.cluster.Kubeconfig, "-n", g.Namespace, "get", "secret", name, "-o", "json")
	if code != 0 {
		t.Fatal(stderr)
	}
	var s struct{ Data map[string]string }
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	for k, v := range s.Data {
		b, err := base64.StdEncoding.DecodeString(v)
		if err != nil {
			t.Fatal(err)
		}
		s.Data[k] = string(b)
	}
	return s.Data
}

// start starts the pod of an ordinal at a loopback address.
func (g *group) start(t testing.TB, ordinal int, ip, uid string, env ...string) *testenv.Relay {
	t.Helper()
	r, err := testenv.StartRelay(within(t), t.TempDir(), g.cluster, testenv.RelayOptions{Namespace: g.Namespace, Account: g.Name, Pod: fmt.Sprintf("%s-%d", g.Name, ordinal),
		UID: uid, IP: ip, Ingress: g.Kind == "ingress", Profiles: g.Profiles, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Logf("%s:\n%s", r.Pod, ours(r.Output()))
		}
	})
	return r
}

// ours removes the lines of Tailscale's library from a log.
func ours(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if !strings.Contains(line, `"from":"tailscale"`) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// echo serves a node's port: it sends a greeting and echoes the received bytes until their end.
func echo(t testing.TB, node *tsnet.Server, network, addr, greeting string) {
	t.Helper()
	if network == "udp" {
		ip, _ := node.TailscaleIPs()
		pc, err := node.ListenPacket("udp", ip.String()+addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pc.Close() })
		go func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = pc.WriteTo([]byte(greeting+string(buf[:n])), from)
			}
		}()
		return
	}
	ln, err := node.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, greeting)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// say sends text over a connection, closes its sending side, and returns the received bytes.
func say(ctx context.Context, addr, text string) (string, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(end)
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func target(fqdn string, ports ...any) map[string]any {
	var list []any
	for i := 0; i < len(ports); i += 3 {
		list = append(list, map[string]any{"protocol": ports[i], "matchPort": ports[i+1], "targetPort": ports[i+2]})
	}
	return map[string]any{"tailnetTarget": map[string]any{"fqdn": fqdn}, "ports": list}
}

// GTW-13, GTW-14 and GTW-19, the relay's part: the relay logs in with its own key and carries TCP, including
// half-closed connections, and UDP. It reports what is bound, and stays the same node over a restart without any key.
func TestEgress(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t)
	tn := tailnettest.Start(t, policy)
	g := newGroup(t, c, tn, "web", "egress", 1)
	web := tn.Node("web-1", "", "tag:svc-web")
	if err := tn.Ready(within(t), web); err != nil {
		t.Fatal(err)
	}
	echo(t, web, "tcp", ":80", "hello ")
	echo(t, web, "udp", ":53", "pong ")
	g.configure(t, map[string]any{"shop.web": target("web-1.tiny.ts.net", "TCP", 10000, 80, "UDP", 10001, 53)}, nil)

	began := time.Now()
	r := g.start(t, 0, "127.77.0.10", "uid-1")
	if err := r.AwaitReady(within(t), "/readyz"); err != nil {
		t.Fatal(err)
	}
	t.Logf("start to ready: %v", time.Since(began).Round(time.Millisecond))
	if err := r.AwaitReady(within(t), "/readyz/shop.web"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "TCP is carried", func() error {
		got, err := say(within(t), "127.77.0.10:10000", "you there")
		if err == nil && got != "hello you there" {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
	pc, err := net.Dial("udp", "127.77.0.10:10001")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	eventually(t, "UDP is carried", func() error {
		if _, err := io.WriteString(pc, "ping"); err != nil {
			return err
		}
		_ = pc.SetReadDeadline(time.Now().Add(time.Second))
		buf := make([]byte, 100)
		n, err := pc.Read(buf)
		if err == nil && string(buf[:n]) != "pong ping" {
			err = fmt.Errorf("got %q", buf[:n])
		}
		return err
	})

	status, _, header, err := r.Ask(within(t), "/healthz")
	switch {
	case err != nil:
		t.Errorf("/healthz: %v", err)
	case status != 200:
		t.Errorf("/healthz: status = %v, want 200", status)
	case header.Get("Pod-IPv4") != "127.77.0.10":
		t.Errorf(`/healthz: header.Get("Pod-IPv4") != "127.77.0.10"; status = %d, header = %v, %v`, status, header, err)
	}
	if status, _, _, err := r.Ask(within(t), "/debug/pprof/heap"); err != nil || status != 404 {
		t.Errorf("/debug/pprof on the port of health: %d %v", status, err)
	}
	if c, err := net.Dial("tcp", "127.77.0.10:9001"); err == nil { // DS-03: profiles are served only with a flag
		c.Close()
		t.Error("the debug port is open")
	}
	switch _, says, _, err := r.Ask(within(t), "/metrics"); {
	case err != nil:
		t.Errorf("/metrics: %v", err)
	case !strings.Contains(says, `tailplane_relay_connections_total{direction="egress",protocol="tcp",result="ok"}`):
		t.Errorf("/metrics: says = %q does not contain %q",
			says, `tailplane_relay_connections_total{direction="egress",protocol="tcp",result="ok"}`)
	case strings.Contains(says, "shop"):
		t.Errorf("/metrics: says = %q contains %q", says, "shop")
	case strings.Contains(says, "tiny.ts.net"):
		t.Errorf("/metrics: says = %q contains %q", says, "tiny.ts.net")
	}
	s := g.secret(t, "web-0")
	for _, key := range []string{"_machinekey", "_profiles", "_current-profile", "device_id", "device_ips", "tailscale_capver"} {
		if s[key] == "" {
			t.Errorf("the state Secret has no %s: %v", key, keysOf(s))
		}
	}
	switch {
	case s["pod_uid"] != "uid-1":
		t.Errorf(`the state Secret: s["pod_uid"] = %q, want %q`, s["pod_uid"], "uid-1")
	case s["device_fqdn"] != "web-0.tiny.ts.net.":
		t.Errorf(`the state Secret: s["device_fqdn"] = %q, want %q`, s["device_fqdn"], "web-0.tiny.ts.net.")
	case !strings.Contains(s["egress-services"], `"podIPv4":"127.77.0.10"`):
		t.Errorf(`the state Secret: s["egress-services"] = %q does not contain %q`, s["egress-services"], `"podIPv4":"127.77.0.10"`)
	case !strings.Contains(s["egress-services"], `{"protocol":"udp","matchPort":10001,"targetPort":53}`):
		t.Errorf(`the state Secret: s["egress-services"] = %q does not contain %q`,
			s["egress-services"], `{"protocol":"udp","matchPort":10001,"targetPort":53}`)
	}
	if strings.Contains(r.Output(), g.Keys[0]) {
		t.Error("the auth key was logged")
	}

	// A change of the ConfigMap is applied while open connections continue.
	open, err := net.Dial("tcp", "127.77.0.10:10000")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := io.ReadFull(open, make([]byte, len("hello "))); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	g.configure(t, map[string]any{"shop.web": target("web-1.tiny.ts.net", "TCP", 10000, 80, "TCP", 10002, 80)}, nil)
	eventually(t, "a new mapping", func() error { _, err := say(within(t), "127.77.0.10:10002", ""); return err })
	t.Logf("change to bound: %v, kubectl included", time.Since(began).Round(time.Millisecond))
	if _, err := io.WriteString(open, "still"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(open, make([]byte, len("still"))); err != nil {
		t.Errorf("an open connection ended with a change elsewhere: %v", err)
	}
	eventually(t, "the status has the change", func() error {
		if st := g.secret(t, "web-0")["egress-services"]; !strings.Contains(st, `"matchPort":10002`) || strings.Contains(st, "10001") {
			return fmt.Errorf("%s", st)
		}
		return nil
	})
	open.Close()

	// GTW-14: another pod of the same name, without a key and without its folder.
	if err := r.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	if r.ExitCode() != 0 {
		t.Errorf("the relay ended with %d", r.ExitCode())
	}
	if _, stderr, code := kubetest.Kubectl(within(t), c.Kubeconfig, "-n", g.Namespace, "patch", "secret", "web-0-config", "--type=json", "-p", `[{"op":"remove","path":"/data/authkey"}]`); code != 0 {
		t.Fatal(stderr)
	}
	r = g.start(t, 0, "127.77.0.10", "uid-2")
	if err := r.AwaitReady(within(t), "/readyz"); err != nil {
		t.Fatal(err)
	}
	again := g.secret(t, "web-0")
	switch {
	case again["device_id"] != s["device_id"]:
		t.Errorf(`after a restart: again["device_id"] = %q, want %q`, again["device_id"], s["device_id"])
	case again["device_ips"] != s["device_ips"]:
		t.Errorf(`after a restart: again["device_ips"] = %q, want %q`, again["device_ips"], s["device_ips"])
	case again["device_fqdn"] != s["device_fqdn"]:
		t.Errorf(`after a restart: again["device_fqdn"] = %q, want %q`, again["device_fqdn"], s["device_fqdn"])
	case again["pod_uid"] != "uid-2":
		t.Errorf(`after a restart: again["pod_uid"] = %q, want %q`, again["pod_uid"], "uid-2")
	case again["reissue_authkey"] != "":
		t.Errorf(`after a restart: again["reissue_authkey"] = %q, want none`, again["reissue_authkey"])
	}
	eventually(t, "TCP is carried after the restart", func() error { _, err := say(within(t), "127.77.0.10:10000", ""); return err })
}

func keysOf(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}
