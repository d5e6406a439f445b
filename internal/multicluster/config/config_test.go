package config

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// example returns the example configuration of the specification.
func example(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("testdata/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// change replaces a text that the configuration must contain.
func change(t testing.TB, doc, old, new string) string {
	t.Helper()
	if !strings.Contains(doc, old) {
		t.Fatalf("the configuration has no %q", old)
	}
	return strings.Replace(doc, old, new, 1)
}

func TestExample(t *testing.T) {
	d, warnings, err := Parse([]byte(example(t)))
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 0 {
		t.Errorf("warnings: %v", warnings)
	}
	switch {
	case d.Epoch != 7:
		t.Errorf("d.Epoch = %v, want 7", d.Epoch)
	case d.Home != "here":
		t.Errorf("d.Home = %q, want %q", d.Home, "here")
	case d.Unmatched != UnmatchedHome:
		t.Errorf("d.Unmatched = %q, want %q", d.Unmatched, UnmatchedHome)
	case d.AllNamespaces != AllNamespacesUnion:
		t.Errorf("d.AllNamespaces = %q, want %q", d.AllNamespaces, AllNamespacesUnion)
	case d.Impersonation:
		t.Errorf("d.Impersonation is true; %+v", d)
	case d.AllowTokenRequest:
		t.Errorf("d.AllowTokenRequest is true; %+v", d)
	case d.Audit.Level != "metadata":
		t.Errorf("d.Audit.Level = %q, want %q", d.Audit.Level, "metadata")
	}
	east := Cluster{Name: "east", Slot: 1, Secret: "east", UID: "5d0f2c1e-0000-4000-8000-000000000001", Limits: Limits{50, 100, 200}, Health: defaultProbe(), Line: 7}
	if got := *d.Cluster("east"); !reflect.DeepEqual(got, east) {
		t.Errorf("east is %+v, want %+v", got, east)
	}
	west := d.Cluster("west")
	switch {
	case !slices.Equal(west.Servers, []string{"https://10.1.0.1:6443", "https://10.1.0.2:6443"}):
		t.Errorf("west: west.Servers (-want +got):\n%s", cmp.Diff([]string{"https://10.1.0.1:6443", "https://10.1.0.2:6443"}, west.Servers))
	case west.CAFile != "west/ca.crt":
		t.Errorf("west: west.CAFile = %q, want %q", west.CAFile, "west/ca.crt")
	case west.Health.Interval != 30*time.Second:
		t.Errorf("west: west.Health.Interval = %v, want %v", west.Health.Interval, 30*time.Second)
	}
	batch := d.Rules[3].Target.Spread
	switch {
	case batch == nil:
		t.Error("batch: batch is nil")
	case !slices.Equal(batch.Members, []string{"east", "west"}):
		t.Errorf("batch: batch.Members (-want +got):\n%s", cmp.Diff([]string{"east", "west"}, batch.Members))
	case batch.Weight("west") != 30:
		t.Errorf(`batch: batch.Weight("west") != 30; batch = %+v`, batch)
	case batch.Place[0].Selector.String() != "tier in (gold)":
		t.Errorf("batch: batch.Place[0].Selector.String() = %q, want %q", batch.Place[0].Selector.String(), "tier in (gold)")
	}
	if got := d.Rules[2].Target.OwnerReferences; got != FollowOwners {
		t.Errorf("ownerReferences of a cluster are %q by default", got)
	}
}

const east = "  credentials: {secret: east}"

func server(s string) [2]string { return [2]string{"\"https://10.1.0.1:6443\", ", `"` + s + `", `} }

// refused lists invalid changes of the example, with the position and the text of the error.
var refused = []struct {
	change [2]string
	says   string
}{
	{[2]string{"kind: Config", "kind: Other"}, `2:7: kind is "Other"`},
	{[2]string{"apiVersion: mca.tailplane.dev/v1alpha1\n", ""}, "1:1: the configuration has no apiVersion"},
	{[2]string{"epoch: 7", "epohc: 7"}, `3:1: the configuration has no field "epohc"`},
	{[2]string{"epoch: 7\n", ""}, "1:1: the configuration has no epoch"},
	{[2]string{"epoch: 7", "epoch: 10000000000"}, "3:8: epoch"},
	{[2]string{"epoch: 7", "epoch: 7\nepoch: 8"}, "4:1: the configuration has epoch twice"},
	{[2]string{"home: here", "home: there"}, `4:7: home is "there"`},
	{[2]string{"home: here", "home: &a here"}, "4:7: anchors"},
	{[2]string{"home: here", "home: !x here"}, "4:7: the tag"},
	{[2]string{"home: here", "home: here\nunmatched: drop"}, "5:12: unmatched"},
	{[2]string{"tracing:", "---\ntracing:"}, ": a second document begins here"},
	{[2]string{"tracing: {endpoint: \"\", ratio: 0}", "tracing: ["}, ": not YAML"},
	{[2]string{"ratio: 0", "ratio: 2"}, "tracing.ratio"},
	{[2]string{"ratio: 0", "ratio: .nan"}, "tracing.ratio"},
	{[2]string{"ratio: 0", "ratio: 0.5"}, "no endpoint"},
	{[2]string{`endpoint: ""`, `endpoint: "http://a:b@c/"`}, "tracing.endpoint is not"},
	{[2]string{"impersonation: refuse", "impersonation: true"}, "impersonation is"},
	{[2]string{"allowTokenRequest: false", "allowTokenRequest: no"}, "allowTokenRequest is"},

	{[2]string{"slot: 1", "slot: 2"}, "13:3: the clusters east and west have the same slot 2"},
	{[2]string{"slot: 1", "slot: 32"}, "8:9: slot is \"32\""},
	{[2]string{"  slot: 1\n", ""}, "7:3: the cluster has no slot"},
	{[2]string{"name: west", "name: east"}, "the cluster east occurs twice"},
	{[2]string{"name: west", "name: merged"}, "the name merged is reserved"},
	{[2]string{"name: west", "name: West"}, `"West" is not a DNS label`},
	{[2]string{"uid: 5d0f2c1e", "uid: x"}, "10:8: uid"},
	{[2]string{"slot: 2\n", "slot: 2\n  uid: 5d0f2c1e-0000-4000-8000-000000000001\n"}, "the clusters east and west have the same uid"},
	{[2]string{"secret: east", "secret: ../east"}, "is not the name of a Secret"},
	{[2]string{"caFile: west/ca.crt", "caFile: ../ca.crt"}, "is not a plain path"},
	{[2]string{"caFile: west/ca.crt", "caFile: /etc/ca.crt"}, "is not a plain path"},
	{[2]string{"  caFile: west/ca.crt\n", ""}, "servers need a caFile"},
	{[2]string{"{audienceToken: true}", "{secret: west}"}, "come from the Secret"},
	{[2]string{"  credentials: {audienceToken: true}\n", ""}, "servers must receive only a token with a separate audience"},
	{[2]string{east + "\n", ""}, "the cluster needs one of"},
	{[2]string{east, "  inCluster: true"}, "both inCluster"},
	{[2]string{east, east + "\n  inCluster: true"}, "the cluster is inCluster"},
	{[2]string{east, "  access: http://127.0.0.1:1"}, "access is not supported yet"},
	{[2]string{east, "  credentials: {exec: {command: x}}"}, `no field "exec": the adapter runs no program`},
	{[2]string{east, "  credentials: {auth-provider: x}"}, `no field "auth-provider"`},
	{[2]string{east, east + "\n  proxy-url: http://x"}, `no field "proxy-url"`},
	{[2]string{east, east + "\n  insecure-skip-tls-verify: true"}, `no field "insecure-skip-tls-verify": the adapter identifies a cluster by its certificate`},
	{[2]string{east, "  credentials: {tokenFile: /etc/x}"}, `no field "tokenFile": a credential must be the content of its Secret`},
	{[2]string{east, east + "\n  client-certificate: /x"}, `no field "client-certificate"`},
	{[2]string{"path: /readyz", `path: "/a?b"`}, "health.path"},
	{[2]string{"interval: 30s", "interval: 1ms"}, "health.interval"},
	{[2]string{"qps: 50", "qps: -1"}, "limits.qps"},
	{[2]string{"qps: 50, ", ""}, "limits.burst has no effect"},

	{server("http://10.1.0.1:6443"), `15:13: the server is refused: it begins with "http"`},
	{server("https://u:p@10.1.0.1"), "user name or password"},
	{server("https://169.254.169.254"), "link-local"},
	{server("https://[fe80::1]"), "link-local"},
	{server("https://127.0.0.1:6443"), "is this machine"},
	{server("https://[::1]"), "is this machine"},
	{server("https://localhost."), "is this machine"},
	{server("https://[::ffff:169.254.169.254]"), "link-local"},
	{server("https://2130706433"), "ambiguous"},
	{server("https://10.1.0.2:6443"), "listed twice"},

	{[2]string{"name: batch\n", "name: production\n"}, "22:3: the rule production occurs twice, first in line 21"},
	{[2]string{"  match: {apiGroups: [batch]", "  match: {apigroups: [batch]"}, `no field "apigroups"`},
	{[2]string{"verbs: [create, delete]", "verbs: [POST]"}, "not HTTP methods"},
	{[2]string{"cluster: here}}", "cluster: there}}"}, "is not one of the clusters"},
	{[2]string{"{cluster: here}", "{cluster: here, deny: no}"}, "2 of cluster, spread and deny"},
	{[2]string{"{cluster: here}", "{}"}, "0 of cluster, spread and deny"},
	{[2]string{"members: [east, west]", "members: [east]"}, "26:7: a spread needs at least two members"},
	{[2]string{"members: [east, west]", "members: [east, east, west]"}, "listed twice"},
	{[2]string{"members: [east, west]", "members: [east, north]"}, `"north" is not one of the clusters`},
	{[2]string{"resources: [jobs], ", ""}, "a spread must list its resources by name"},
	{[2]string{"resources: [jobs]", `resources: ["*"]`}, "a spread must list its resources by name"},
	{[2]string{"resources: [jobs]", `resources: [jobs/status]`}, "a subresource is in the cluster of its object"},
	{[2]string{"resources: [jobs]", `resources: [Jobs]`}, `the resource "Jobs"`},
	{[2]string{"resources: [jobs]", `resources: [jobs], names: [a]`}, "a list has no name"},
	{[2]string{"resources: [jobs]", `resources: [jobs], verbs: [get]`}, "allowVerbSplit: true"},
	{[2]string{"namespaces: [batch]", "namespaces: []"}, "empty list"},
	{[2]string{"namespaces: [batch]", `namespaces: ["a*b*"]`}, `more than one "*"`},
	{[2]string{"weights: {east: 70, west: 30}", "weights: {east: 0}"}, "no member has a weight"},
	{[2]string{"weights: {east: 70, west: 30}", "weights: {here: 1}"}, "which is not a member"},
	{[2]string{"strategy: hash", "strategy: none"}, "weights have no effect"},
	{[2]string{"tier in (gold)", "tier in gold"}, "not a selector"},
	{[2]string{"cluster: east}]", "cluster: here}]"}, "place has the cluster \"here\""},
	{[2]string{"onConflict: reject", "onConflict: maybe"}, "onConflict is"},
	{[2]string{"read: fail", "read: try"}, "onUnavailable.read"},
	{[2]string{"{audienceToken: true}\nrules", "{secret: east}\nrules"}, "come from the Secret"},
	{[2]string{"  servers: [\"https://10.1.0.1:6443\", \"https://10.1.0.2:6443\"]\n  caFile: west/ca.crt\n  credentials: {audienceToken: true}", "  credentials: {secret: east}"}, "east and west have the same Secret"},
	{[2]string{"  servers: [\"https://10.1.0.1:6443\", \"https://10.1.0.2:6443\"]\n  caFile: west/ca.crt\n", ""}, "an audienceToken needs servers"},
	{[2]string{east, "  servers: [\"https://10.1.0.1:6443\"]\n  caFile: a\n  credentials: {audienceToken: true}"}, "east and west have the same server"},
	{[2]string{"- name: east\n", "-\n"}, "the cluster has no name"},
	{[2]string{"clusters:\n", "clusters:\n- here\n"}, "the cluster is not a mapping"},
	{[2]string{"name: no-crds, ", ""}, "the rule has no name"},
	{[2]string{", target: {cluster: east}}", "}"}, "the rule has no target"},
	{[2]string{"resources: [jobs]", `resources: [""]`}, "a resource is empty"},
	{[2]string{"resources: [jobs]", `resources: ["*", jobs]`}, `resources has "*" and other entries`},
	{[2]string{"namespaces: [batch]", `namespaces: [""]`}, "namespaces has an empty entry"},
	{[2]string{"{cluster: here}", "{deny: no, ownerReferences: keep}"}, "ownerReferences of a target requires cluster"},
	{[2]string{`"tier in (gold)"`, `""`}, "it would match all objects"},
	{[2]string{"strategy: hash\n      weights: {east: 70, west: 30}\n      ownerReferences: follow\n      onConflict: reject\n      onUnavailable: {read: fail, create: fail}", "strategy: roundRobin\n      onUnavailable: {create: spill}"}, "spill requires strategy hash or weighted"},
	{[2]string{"audit: {level: metadata}", "audit: metadata"}, "audit is not a mapping"},
	{[2]string{"members: [east, west]", "members: east"}, "members is not a list"},
	{[2]string{"epoch: 7", "7: 7"}, "a key that is not a string"},
	{[2]string{"namespaces: [batch]", "namespaces: [prod-a]"}, "22:3: the rule batch never matches: the earlier rule production in line 21"},
}

// ADP-20: each error names its position and reason. AD-08 is covered too.
func TestRefused(t *testing.T) {
	for _, tt := range refused {
		t.Run(tt.change[1], func(t *testing.T) {
			_, _, err := Parse([]byte(change(t, example(t), tt.change[0], tt.change[1])))
			if _, ok := errors.AsType[*InvalidError](err); !ok {
				t.Fatalf("it is accepted (%v)", err)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("refused with\n%v\nwant %q", err, tt.says)
			}
		})
	}
}

func TestWholeFiles(t *testing.T) {
	for want, doc := range map[string]string{
		"the file is empty":       "# nothing\n",
		"is not a mapping":        "- a\n",
		"larger than 1048576":     "a: " + strings.Repeat("x", maxSize),
		"not YAML":                "a: [\n",
		"which has all owners":    "apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nhome: a\nclusters: [{name: a, slot: 0, inCluster: true}]\nrules: [{name: r, match: {namespaces: [x]}, target: {cluster: a, ownerReferences: shelter}}]\n",
		"a second document begin": example(t) + "---\na: 1\n",
	} {
		if _, _, err := Parse([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestAllAtOnce checks that all errors are reported at once, in the order of their lines.
func TestAllAtOnce(t *testing.T) {
	doc := change(t, change(t, change(t, example(t), "epoch: 7", "epohc: 7"), "slot: 1", "slot: 99"), "strategy: hash", "strategy: luck")
	_, _, err := Parse([]byte(doc))
	invalid, ok := errors.AsType[*InvalidError](err)
	if !ok || len(invalid.Diagnostics) != 4 { // the missing epoch is the fourth
		t.Fatalf("found %v", err)
	}
	if !slices.IsSortedFunc(invalid.Diagnostics, func(a, b Diagnostic) int { return a.Line - b.Line }) {
		t.Errorf("they are not in order:\n%v", err)
	}
}

func TestWarnings(t *testing.T) {
	batch := "{apiGroups: [batch], resources: [jobs], namespaces: [batch]}"
	for _, tt := range []struct{ old, new, says string }{
		{"home: here", "home: east", "home east is not the cluster of this pod"},
		{"{name: elections-at-home, match: {apiGroups: [coordination.k8s.io]}, target: {cluster: here}}", "{name: other, match: {apiGroups: [x.io]}, target: {cluster: here}}", "matches the leases"},
		{batch, `{apiGroups: [""], resources: [pods], namespaces: [batch]}`, "spreads pods, but neither it nor an earlier rule spreads events"},
		{"read: fail", "read: stale", "onUnavailable.read: stale was removed and behaves like fail"},
		{"create: fail", "create: spill", "that member may have an object with the same name"},
		{"deleteCollection: refuse", "deleteCollection: all", "delete objects in all of these clusters: east, west"},
		{"{namespaces: [production, \"prod-*\"]}, target: {cluster: east}", "{namespaces: [production, \"prod-*\"], verbs: [get]}, allowVerbSplit: true, target: {cluster: east}", "splits verbs"},
		{"{namespaces: [production, \"prod-*\"]}", "{namespaces: [production, \"prod-*\"], names: [x]}", "lists of their namespace do not contain them"},
		{"members: [east, west]\n      place: [{labels: \"tier in (gold)\", cluster: east}]\n      strategy: hash\n      weights: {east: 70, west: 30}", "members: [east, here]", "no rule uses the cluster west"},
	} {
		t.Run(tt.says, func(t *testing.T) {
			_, warnings, err := Parse([]byte(change(t, example(t), tt.old, tt.new)))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(warnings, func(f Diagnostic) bool { return strings.Contains(f.Message, tt.says) && f.Line > 0 }) {
				t.Errorf("warnings %v, want %q", warnings, tt.says)
			}
		})
	}
}

// TestReadStaleIsTheDefault checks that read: stale of an earlier release is read as the default.
func TestReadStaleIsTheDefault(t *testing.T) {
	want, _, err := Parse([]byte(example(t)))
	if err != nil {
		t.Fatal(err)
	}
	got, warnings, err := Parse([]byte(change(t, example(t), "read: fail", "read: stale")))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read: stale gives\n%+v\nwant\n%+v", got, want)
	}
	about := slices.DeleteFunc(warnings, func(f Diagnostic) bool { return !strings.Contains(f.Message, "stale") })
	if len(about) != 1 {
		t.Errorf("%d warnings: %v", len(about), about)
	}
}

// TestDefault checks that the default configuration equals a file with only the pod's cluster.
func TestDefault(t *testing.T) {
	d, _, err := Parse([]byte("apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nhome: home\nclusters: [{name: home, slot: 0, inCluster: true}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	d.Clusters[0].Line = 0
	if want := Default(); !reflect.DeepEqual(d, want) {
		t.Errorf("the smallest configuration is %+v, no configuration is %+v", d, want)
	}
}

// AD-08: no form of an address leads to a place that must not get a credential.
func TestServers(t *testing.T) {
	for _, tt := range []struct {
		server string
		ok     bool
		why    string
	}{
		{"https://10.1.0.1:6443", true, ""},
		{"https://api.east.example.com", true, ""},
		{"https://rancher.example.com/k8s/clusters/c-1", true, "a path before the API is known from Rancher"},
		{"https://[2001:db8::1]:6443", true, ""},
		{"https://[64:ff9b::a01:1]", true, "NAT64 of 10.1.0.1"},
		{"https://kubernetes.default.svc", true, ""},
		{"https://100.64.0.1", true, "a tailnet's address"},
		{"", false, ""}, {"https://", false, ""}, {"https:///x", false, ""}, {"10.1.0.1:6443", false, ""}, {"https:10.1.0.1", false, ""},
		{"HTTP://a", false, ""}, {"https://a?b", false, ""}, {"https://a#b", false, ""}, {"https://a/../b", false, ""}, {"https://a/%2e", false, ""}, {"https://a//b", false, ""},
		{"https://a:0", false, ""}, {"https://a:", false, ""}, {"https://a:99999", false, ""}, {"https://a b", false, ""}, {"https://ä.example", false, ""},
		{"https://0.0.0.0", false, "this machine"}, {"https://0.1.2.3", false, ""}, {"https://[::]", false, ""}, {"https://224.0.0.1", false, "multicast"}, {"https://255.255.255.255", false, ""}, {"https://240.0.0.1", false, ""},
		{"https://[ff02::1]", false, "multicast"},
		{"https://127.1", false, "read as 127.0.0.1"}, {"https://0x7f000001", false, ""}, {"https://0177.0.0.1", false, ""}, {"https://127.0.0.0x1", false, ""}, {"https://2852039166", false, ""},
		{"https://LOCALHOST", false, ""}, {"https://a.localhost", false, ""}, {"https://localhost.localdomain", false, ""},
		{"https://metadata.google.internal", false, ""}, {"https://metadata.google.internal.", false, ""}, {"https://instance-data.ec2.internal", false, ""},
		{"https://100.100.100.200", false, "Alibaba"}, {"https://168.63.129.16", false, "Azure"}, {"https://[fd00:ec2::254]", false, "AWS"}, {"https://[fd20:ce::254]", false, "Google"},
		{"https://[::ffff:127.0.0.1]", false, "mapped"}, {"https://[::ffff:a9fe:a9fe]", false, "mapped"}, {"https://[::127.0.0.1]", false, "compatible"}, {"https://[::ffff:0:127.0.0.1]", false, "translated"},
		{"https://[2002:7f00:1::]", false, "6to4"}, {"https://[2002:a9fe:a9fe::1]", false, "6to4"},
		{"https://[64:ff9b::7f00:1]", false, "NAT64"}, {"https://[64:ff9b::a9fe:a9fe]", false, "NAT64"}, {"https://[64:ff9b:1::a9fe:a9fe]", false, "local NAT64"},
		{"https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]", false, "Teredo"}, {"https://[2001:db8::5efe:127.0.0.1]", false, "ISATAP"},
		{"https://[fe80::1%25eth0]", false, "zone"},
	} {
		t.Run(tt.server, func(t *testing.T) {
			if _, err := CheckServer(tt.server, false); (err == nil) != tt.ok {
				t.Errorf("%v, want ok %v (%s)", err, tt.ok, tt.why)
			}
		})
	}
	for _, s := range []string{"https://127.0.0.1:6443", "https://localhost:1", "https://[::1]:1", "https://[::ffff:127.0.0.1]"} {
		if _, err := CheckServer(s, true); err != nil {
			t.Errorf("with allowLoopback, %s: %v", s, err)
		}
	}
	for _, s := range []string{"https://169.254.169.254", "https://[::ffff:169.254.169.254]"} {
		if _, err := CheckServer(s, true); err == nil {
			t.Errorf("allowLoopback allows %s", s)
		}
	}
	if err := CheckAddress(netip.Addr{}, true); err == nil {
		t.Error("a missing address is accepted")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example(f)))
	f.Add([]byte("apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nhome: a\nclusters: [{name: a, slot: 0, inCluster: true}]\n"))
	f.Add([]byte("a: &x [*x]"))
	f.Add([]byte("rules: [{match: {verbs: [a]}}, null]\nclusters: 1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, _, err := Parse(b)
		if err != nil {
			switch invalid, ok := errors.AsType[*InvalidError](err); {
			case !ok:
				t.Fatalf("ok is false; %v", err)
			case len(invalid.Diagnostics) == 0:
				t.Fatalf("len(invalid.Diagnostics) = %v", len(invalid.Diagnostics))
			case err.Error() == "":
				t.Fatalf("err.Error() is empty; %v", err)
			}
			return
		}
		if d.Cluster(d.Home) == nil || len(d.Clusters) > 1 && (d.Epoch < 1 || d.Epoch > MaxEpoch) {
			t.Fatalf("accepted: %+v", d)
		}
		for _, r := range d.Rules {
			if s := r.Target.Spread; s != nil && (len(s.Members) < 2 || r.Match.Resources == nil) || r.Target.Cluster != "" && d.Cluster(r.Target.Cluster) == nil {
				t.Fatalf("accepted: %+v", r)
			}
		}
		for _, c := range d.Clusters {
			for _, s := range c.Servers {
				if _, err := CheckServer(s, c.AllowLoopback); err != nil {
					t.Fatalf("accepted %q: %v", s, err)
				}
			}
		}
	})
}
