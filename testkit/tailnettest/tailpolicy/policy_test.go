package tailpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tailscale/hujson"
	"tailscale.com/tailcfg"
)

const declared = `"groups": {"group:dev": ["alice@example.com", "bob@example.com"], "group:none": []},
	"tagOwners": {"tag:tka": ["autogroup:admin"], "tag:ci": ["group:dev"], "tag:sub": ["tag:ci"], "tag:mine": ["autogroup:member"]},
	"hosts": {"db": "100.64.0.9", "lan": "10.1.0.0/16"},
	`

// TB-05: invalid policies are rejected, and the error names the position and the problem.
func TestPolicyRefused(t *testing.T) {
	t.Parallel()
	grant := func(s string) string { return `{` + declared + `"grants": [{` + s + `}]}` }
	acl := func(s string) string { return `{` + declared + `"acls": [{` + s + `}]}` }
	for _, c := range []struct{ why, policy, says string }{
		{"no JSON", `{`, "hujson"},
		{"no object", `[]`, "must be an object"},
		{"nothing", ``, "hujson"},
		{"an unknown section", `{"gropus": {}}`, `"gropus" is not supported by this testbed`},
		{"ssh", "{\n\n\"ssh\": []}", `line 3, /ssh: "ssh" is not supported`},
		{"autoApprovers", `{"autoApprovers": {}}`, `"autoApprovers" is not supported`},
		{"postures", `{"postures": {}}`, `"postures" is not supported`},
		{"defaultSrcPosture", `{"defaultSrcPosture": []}`, `"defaultSrcPosture" is not supported`},
		{"ipsets", `{"ipsets": {}}`, `"ipsets" is not supported`},
		{"sshTests", `{"sshTests": []}`, `"sshTests" is not supported`},
		{"derpMap", `{"derpMap": {}}`, `"derpMap" is not supported`},
		{"disableIPv4", `{"disableIPv4": true}`, `"disableIPv4" is not supported`},
		{"randomizeClientPort", `{"randomizeClientPort": true}`, `"randomizeClientPort" is not supported`},
		{"capitals, as in old files", `{"ACLs": []}`, `"ACLs" is not supported`},
		{"a section twice", `{"groups": {}, "groups": {}}`, `"groups" occurs twice`},
		{"a group twice", `{"groups": {"group:a": [], "group:a": []}}`, `"group:a" occurs twice`},
		{"a field twice", grant(`"src": ["*"], "src": ["tag:ci"], "dst": ["*"], "ip": ["*"]`), `"src" occurs twice`},

		{"grants is no list", `{"grants": {}}`, "/grants: must be a list"},
		{"a grant is no object", `{"grants": ["x"]}`, "/grants/0: must be an object"},
		{"via", grant(`"src": ["*"], "dst": ["*"], "ip": ["*"], "via": ["tag:ci"]`), `/grants/0/via: "via" is not supported`},
		{"srcPosture", grant(`"src": ["*"], "dst": ["*"], "ip": ["*"], "srcPosture": ["posture:x"]`), `"srcPosture" is not supported`},
		{"no src", grant(`"dst": ["*"], "ip": ["*"]`), "needs src and dst"},
		{"no dst", grant(`"src": ["*"], "dst": [], "ip": ["*"]`), "needs src and dst"},
		{"neither ip nor app", grant(`"src": ["*"], "dst": ["*"]`), "needs ip or app"},
		{"src is text", grant(`"src": "*", "dst": ["*"], "ip": ["*"]`), "a string is not allowed here"},

		{"an undeclared group", grant(`"src": ["group:ops"], "dst": ["*"], "ip": ["*"]`), `/grants/0/src/0: "group:ops" is not declared in groups`},
		{"an undeclared tag", grant(`"src": ["*"], "dst": ["db", "tag:new"], "ip": ["*"]`), `/grants/0/dst/1: "tag:new" is not declared in tagOwners`},
		{"an undeclared host", grant(`"src": ["*"], "dst": ["web"], "ip": ["*"]`), `"web" is not a login, group`},
		{"an unknown autogroup", grant(`"src": ["autogroup:danger-all"], "dst": ["*"], "ip": ["*"]`), `"autogroup:danger-all" is not supported`},
		{"an ipset", grant(`"src": ["*"], "dst": ["ipset:x"], "ip": ["*"]`), "ipset is not supported"},
		{"a domain of users", grant(`"src": ["user:*@example.com"], "dst": ["*"], "ip": ["*"]`), "user is not supported"},
		{"self as source", grant(`"src": ["autogroup:self"], "dst": ["*"], "ip": ["*"]`), "is not allowed here"},
		{"admins as source", grant(`"src": ["autogroup:admin"], "dst": ["*"], "ip": ["*"]`), "is not allowed here"},
		{"self for a tag", grant(`"src": ["autogroup:member", "tag:ci"], "dst": ["autogroup:self"], "ip": ["*"]`), `/grants/0/src/1: with autogroup:self`},
		{"self for all", grant(`"src": ["*"], "dst": ["tag:tka", "autogroup:self"], "ip": ["*"]`), `with autogroup:self`},
		{"a service as source", grant(`"src": ["svc:web"], "dst": ["*"], "ip": ["*"]`), "is not allowed here"},
		{"a bad service", grant(`"src": ["*"], "dst": ["svc:"], "ip": ["*"]`), "/grants/0/dst/0"},
		{"an empty name", grant(`"src": [""], "dst": ["*"], "ip": ["*"]`), "/grants/0/src/0"},

		{"a port too large", grant(`"src": ["*"], "dst": ["*"], "ip": ["65536"]`), `/grants/0/ip/0: "65536"`},
		{"ports the wrong way round", grant(`"src": ["*"], "dst": ["*"], "ip": ["90-80"]`), `not a port or a range`},
		{"an unknown protocol", grant(`"src": ["*"], "dst": ["*"], "ip": ["tpc:80"]`), `"tpc" is not a protocol`},
		{"a protocol without ports", grant(`"src": ["*"], "dst": ["*"], "ip": ["icmp:80"]`), "protocol icmp has no ports"},
		{"a list of ports in a grant", grant(`"src": ["*"], "dst": ["*"], "ip": ["tcp:80,443"]`), "not a port or a range"},
		{"a bare capability", grant(`"src": ["*"], "dst": ["*"], "app": {"admin": [{}]}`), `"admin" is not the name of a capability`},
		{"a capability that is no list", grant(`"src": ["*"], "dst": ["*"], "app": {"example.com/cap/x": {}}`), "is not allowed here"},

		{"a group in a group", `{"groups": {"group:a": ["group:b"]}}`, `"group:b" is not a login`},
		{"a badly named group", `{"groups": {"dev": []}}`, `"dev" is not the name of a group`},
		{"a badly named tag", `{"tagOwners": {"tag:1x": []}}`, `"tag:1x" is not the name of a tag`},
		{"every user owns a tag", `{"tagOwners": {"tag:x": ["*"]}}`, "is not allowed here"},
		{"an undeclared tag owns", `{"tagOwners": {"tag:x": ["tag:y"]}}`, `"tag:y" is not declared`},
		{"a host without address", `{"hosts": {"db": "db.example.com"}}`, "neither an address nor a CIDR"},
		{"a host called as an address", `{"hosts": {"10.0.0.1": "10.0.0.2"}}`, "not the name of a host"},

		{"an acl that denies", acl(`"action": "deny", "src": ["*"], "dst": ["*:*"]`), "only accept is supported"},
		{"old acl fields", acl(`"action": "accept", "users": ["*"], "ports": ["*:*"]`), `"users" is not supported`},
		{"an acl without ports", acl(`"action": "accept", "src": ["*"], "dst": ["db"]`), "has no ports"},
		{"an acl without dst", acl(`"action": "accept", "src": ["*"]`), "needs src and dst"},
		{"an acl with an unknown protocol", acl(`"action": "accept", "src": ["*"], "proto": "tpc", "dst": ["*:*"]`), `"tpc" is not a protocol`},
		{"an acl with ports of icmp", acl(`"action": "accept", "src": ["*"], "proto": "icmp", "dst": ["*:80"]`), "has no ports"},

		{"attributes without a target", `{"nodeAttrs": [{"target": [], "attr": ["funnel"]}]}`, "needs target"},
		{"attributes without any", `{"nodeAttrs": [{"target": ["*"]}]}`, "needs target and attr"},
		{"ipPool", `{"nodeAttrs": [{"target": ["*"], "ipPool": ["100.81.0.0/16"]}]}`, `"ipPool" is not supported`},

		{"a test that fails", `{` + declared + `"grants": [{"src": ["alice@example.com"], "dst": ["db"], "ip": ["tcp:5432"]}],
			"tests": [{"src": "bob@example.com", "accept": ["db:5432"]}]}`, "/tests/0/accept/0: test failed: bob@example.com to db:5432: the policy does not allow it"},
		{"old test fields", `{"tests": [{"user": "a@b", "allow": []}]}`, `"user" is not supported`},
		{"posture in a test", `{"tests": [{"src": "a@b.c", "srcPostureAttrs": {}, "accept": ["10.0.0.1:1"]}]}`, `"srcPostureAttrs" is not supported`},
		{"a test of nothing", `{"tests": [{"src": "a@b.c"}]}`, "needs accept or deny"},
		{"a test with many ports", `{"tests": [{"src": "a@b.c", "deny": ["10.0.0.1:1-9"]}]}`, "single ports"},
		{"a test of everything", `{"tests": [{"src": "a@b.c", "deny": ["*:1"]}]}`, `"*" cannot be the destination of a test`},
		{"a test from all sources", `{"tests": [{"src": "*", "deny": ["10.0.0.1:1"]}]}`, `"*" cannot be the source of a test`},
		{"a test of an empty group", `{` + declared + `"tests": [{"src": "group:none", "deny": ["db:1"]}]}`, `"group:none" is empty`},
	} {
		_, err := Parse(c.policy)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", c.why, err, c.says)
		}
	}
}

// imagined returns a small tailnet as input for the compiler. None of its nodes runs.
func imagined() map[string]Node {
	at := func(last byte) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, 0, last}), 32)}
	}
	return map[string]Node{
		"alice":  {Login: "alice@example.com", Addrs: at(1)},
		"alice2": {Login: "alice@example.com", Addrs: at(2)},
		"bob":    {Login: "bob@example.com", Addrs: at(3)},
		"eve":    {Login: "eve@elsewhere.org", Addrs: at(4), Foreign: true},
		"tka": {Tags: []string{"tag:tka"}, Addrs: at(5),
			Services: map[tailcfg.ServiceName][]netip.Addr{"svc:web": {netip.MustParseAddr("100.127.0.1")}}},
		"ci": {Tags: []string{"tag:ci"}, Addrs: at(6)},
		"db": {Tags: []string{"tag:sub"}, Addrs: at(9)},
	}
}

// describe lists the rules of all nodes, one line each: sources > destinations ports, or capabilities.
func describe(p *Policy) string {
	nodes := imagined()
	names := map[string]string{"100.127.0.1": "web"}
	var sources []Node
	var order []string
	for name, n := range nodes {
		names[n.Addrs[0].Addr().String()] = name
		order = append(order, name)
	}
	slices.Sort(order)
	for _, name := range order {
		sources = append(sources, nodes[name])
	}
	called := func(addr string) string {
		a := strings.TrimSuffix(addr, "/32")
		if n := names[a]; n != "" {
			return n
		}
		return addr
	}
	var out []string
	for _, name := range order {
		for _, r := range p.Filter(nodes[name], sources) {
			var src, what []string
			for _, s := range r.SrcIPs {
				src = append(src, called(s))
			}
			for _, d := range r.DstPorts {
				what = append(what, fmt.Sprintf("%s:%v", called(d.IP), portText(d.Ports)))
			}
			for _, g := range r.CapGrant {
				for _, d := range g.Dsts {
					j, _ := json.Marshal(g.CapMap)
					what = append(what, called(d.String())+" "+string(j))
				}
			}
			line := strings.Join(src, ",") + " > " + strings.Join(what, " ")
			if len(r.IPProto) > 0 {
				line += fmt.Sprintf(" %v", r.IPProto)
			}
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func portText(r tailcfg.PortRange) string {
	switch {
	case r == tailcfg.PortRangeAny:
		return "*"
	case r.First == r.Last:
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// TB-05: the rules that each node gets.
func TestPolicyCompiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ why, rules, want string }{
		{"nothing", ``, ""},
		{"a login to a tag", `"grants": [{"src": ["alice@example.com"], "dst": ["tag:tka"], "ip": ["tcp:443"]}]`,
			"alice,alice2 > tka:443 [6]"},
		{"a tagged node is no member and has no login", `"grants": [{"src": ["autogroup:member"], "dst": ["tag:ci"], "ip": ["80-90"]}]`,
			"alice,alice2,bob > ci:80-90"},
		{"tagged nodes", `"grants": [{"src": ["autogroup:tagged"], "dst": ["tag:ci"], "ip": ["udp:*"]}]`,
			"ci,db,tka > ci:* [17]"},
		{"guests", `"grants": [{"src": ["autogroup:shared"], "dst": ["tag:ci"], "ip": ["icmp:*"]}]`,
			"eve > ci:* [1 58]"},
		{"a group, by its logins", `"grants": [{"src": ["group:dev"], "dst": ["bob@example.com"], "ip": ["*"]}]`,
			"alice,alice2,bob > bob:*"},
		{"an empty group has no members", `"grants": [{"src": ["group:none"], "dst": ["*"], "ip": ["*"]}]`, ""},
		{"self is the same person's machines, not those with tags or from elsewhere", `"grants": [{"src": ["autogroup:member"], "dst": ["autogroup:self"], "ip": ["22"]}]`,
			"alice,alice2 > alice:22\nalice,alice2 > alice2:22\nbob > bob:22"},
		{"self with another destination", `"grants": [{"src": ["group:dev"], "dst": ["tag:ci", "autogroup:self"], "ip": ["22"]}]`,
			"alice,alice2 > alice:22\nalice,alice2 > alice2:22\nbob > bob:22\nalice,alice2,bob > ci:22"},
		{"self and the person by name: one rule each", `"grants": [{"src": ["alice@example.com"], "dst": ["autogroup:self", "bob@example.com"], "ip": ["22"]}]`,
			"alice,alice2 > alice:22\nalice,alice2 > alice2:22\nalice,alice2 > bob:22"},
		{"the internet is not behind any node here", `"grants": [{"src": ["*"], "dst": ["autogroup:internet"], "ip": ["*"]}]`, ""},
		{"a host by name", `"grants": [{"src": ["tag:ci"], "dst": ["db"], "ip": ["tcp:5432"]}]`, "ci > db:5432 [6]"},
		{"a node that is listed twice counts once", `"grants": [{"src": ["tag:ci"], "dst": ["db", "tag:sub", "100.64.0.9"], "ip": ["1"]}]`, "ci > db:1"},
		{"a network outside as source", `"grants": [{"src": ["lan"], "dst": ["db"], "ip": ["1"]}]`, "10.1.0.0/16 > db:1"},
		{"a network of the tailnet as source means its nodes", `"grants": [{"src": ["100.64.0.0/30"], "dst": ["db"], "ip": ["1"]}]`,
			"alice,alice2,bob > db:1"},
		{"a host does not open the service that it answers for", `"grants": [{"src": ["tag:ci"], "dst": ["tag:tka"], "ip": ["1"]}]`, "ci > tka:1"},
		{"a service does not open its host", `"grants": [{"src": ["tag:ci"], "dst": ["svc:web"], "ip": ["1"]}]`, "ci > web:1"},
		{"all is also services", `"grants": [{"src": ["tag:ci"], "dst": ["*"], "ip": ["1"]}]`,
			"ci > alice:1\nci > alice2:1\nci > bob:1\nci > ci:1\nci > db:1\nci > eve:1\nci > tka:1 web:1"},
		{"capabilities open no ports", `"grants": [{"src": ["bob@example.com"], "dst": ["tag:tka"], "app": {"x.dev/cap/a": [{"role": "r"}, /* two */ {"n": 1,},]}}]`,
			`bob > tka {"x.dev/cap/a":[{"role":"r"},{"n":1}]}`},
		{"a capability without values", `"grants": [{"src": ["bob@example.com"], "dst": ["tag:tka"], "app": {"x.dev/cap/a": []}}]`,
			`bob > tka {"x.dev/cap/a":[]}`},
		{"both", `"grants": [{"src": ["bob@example.com"], "dst": ["tag:tka"], "ip": ["80", "tcp:443"], "app": {"x.dev/cap/a": [{}]}}]`,
			"bob > tka:80\nbob > tka:443 [6]\nbob > tka {\"x.dev/cap/a\":[{}]}"},
		{"acls", `"acls": [{"action": "accept", "src": ["bob@example.com"], "proto": "tcp", "dst": ["tag:ci:80,443", "db:*", "100.64.0.5:22"]}]`,
			"bob > ci:80 ci:443 [6]\nbob > db:* [6]\nbob > tka:22 [6]"},
		{"acls with self", `"acls": [{"action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self:*"]}]`,
			"alice,alice2 > alice:*\nalice,alice2 > alice2:*\nbob > bob:*"},
		{"a protocol by number", `"grants": [{"src": ["tag:ci"], "dst": ["db"], "ip": ["47:*"]}]`, "ci > db:* [47]"},
	} {
		p, err := Parse(`{` + declared + c.rules + `}`)
		if err != nil {
			t.Errorf("%s: %v", c.why, err)
			continue
		}
		if got := describe(p); got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", c.why, got, c.want)
		}
	}
}

// The tests section runs against the rules, with every form of source and destination.
func TestPolicyTests(t *testing.T) {
	t.Parallel()
	const rules = `"grants": [
		{"src": ["group:dev"], "dst": ["tag:tka"], "ip": ["tcp:443"]},
		{"src": ["tag:ci"], "dst": ["lan"], "ip": ["8000-8010"]},
		{"src": ["alice@example.com"], "dst": ["svc:web"], "ip": ["udp:53"]},
		{"src": ["autogroup:member"], "dst": ["autogroup:self"], "ip": ["22"]},
		{"src": ["bob@example.com"], "dst": ["tag:ci"], "app": {"x.dev/cap/a": [{}]}},
	],`
	for _, c := range []struct {
		test string
		ok   bool
	}{
		{`"src": "alice@example.com", "accept": ["tag:tka:443"], "deny": ["tag:tka:80", "tag:ci:443"]`, true},
		{`"src": "group:dev", "accept": ["tag:tka:443"]`, true},
		{`"src": "group:dev", "accept": ["svc:web:53"]`, false},
		{`"src": "alice@example.com", "accept": ["svc:web:53"]`, true},
		{`"src": "alice@example.com", "proto": "tcp", "deny": ["svc:web:53"]`, true},
		{`"src": "alice@example.com", "proto": "udp", "deny": ["svc:web:53"]`, false},
		{`"src": "carol@example.com", "deny": ["tag:tka:443"]`, true},
		{`"src": "tag:ci", "accept": ["10.1.2.3:8000", "lan:8010"], "deny": ["10.2.0.1:8000", "10.1.2.3:7999"]`, true},
		{`"src": "tag:ci", "accept": ["10.0.0.0/8:8000"]`, false}, // the rule covers only a part of it
		{`"src": "alice@example.com", "accept": ["alice@example.com:22"], "deny": ["bob@example.com:22"]`, true},
		{`"src": "bob@example.com", "deny": ["tag:ci:80"]`, true}, // a capability opens no port
		{`"src": "tag:tka", "deny": ["tag:tka:443"]`, true},
	} {
		_, err := Parse(`{` + declared + rules + `"tests": [{` + c.test + `}]}`)
		if pe, ok := errors.AsType[*Error](err); (err == nil) != c.ok || err != nil && (!ok || !pe.Test || !strings.Contains(pe.Msg, "test failed: ")) {
			t.Errorf("%s: %v", c.test, err)
		}
	}
}

func TestTagOwners(t *testing.T) {
	t.Parallel()
	p, err := Parse(`{` + declared[:strings.LastIndexByte(declared, ',')] + `}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		why   string
		login string
		own   []string // the key's tags
		asked []string
		want  string // the tags; "!" is rejected
	}{
		{"a person", "alice@example.com", nil, nil, "[]"},
		{"nobody", "", nil, nil, "!"},
		{"an administrator's key", "", []string{"tag:tka", "tag:ci"}, []string{"tag:ci"}, "[tag:ci tag:tka]"},
		{"an administrator's key with an undeclared tag", "", []string{"tag:x"}, nil, "!"},
		{"alice owns tag:ci through her group", "alice@example.com", nil, []string{"tag:ci"}, "[tag:ci]"},
		{"carol does not", "carol@example.com", nil, []string{"tag:ci"}, "!"},
		{"any member", "carol@example.com", nil, []string{"tag:mine"}, "[tag:mine]"},
		{"admins only", "alice@example.com", nil, []string{"tag:tka"}, "!"},
		{"a tag that owns another", "", []string{"tag:ci"}, []string{"tag:sub"}, "[tag:ci tag:sub]"},
		{"a tagged key does not act as its maker", "alice@example.com", []string{"tag:ci"}, []string{"tag:mine"}, "!"},
	} {
		tags, err := p.TagsFor(c.login, c.own, c.asked)
		got := fmt.Sprint(tags)
		if err != nil {
			got = "!"
		}
		if got != c.want {
			t.Errorf("%s: %s (%v), want %s", c.why, got, err, c.want)
		}
	}
	for _, c := range []struct {
		why, own, tag string
		want          bool
	}{
		{"its own", "tag:ci", "tag:ci", true},
		{"one that it owns", "tag:ci", "tag:sub", true},
		{"a tag of another owner", "tag:ci", "tag:tka", false},
		{"one of every member, since tags are no member", "tag:ci", "tag:mine", false},
		{"its own tag, which is not declared", "tag:x", "tag:x", false},
	} {
		if got := p.MayTag([]string{c.own}, c.tag); got != c.want {
			t.Errorf("%s: the bearer of %s may give %s: %v", c.why, c.own, c.tag, got)
		}
	}
}

// TB-05: the size of a policy is checked before it is parsed.
func TestPolicyBounds(t *testing.T) {
	t.Parallel()
	capability := func(value string) string {
		return `{"grants": [{"src": ["*"], "dst": ["*"], "app": {"x.dev/cap/a": [` + value + `]}}]}`
	}
	const deepest = maxDepth - 5 // minus the five levels that capability opens
	open := func(n int) string { return strings.Repeat("[", n) }
	nest := func(n int) string { return open(n) + strings.Repeat("]", n) }
	for _, c := range []struct{ why, policy, says string }{
		{"a megabyte of open brackets", open(MaxSize), "policy line 1: lists and objects are nested deeper than 10000"},
		{"a megabyte of brackets", nest(MaxSize / 2), "deeper than 10000"},
		{"a megabyte of objects", strings.Repeat(`{"a":`, MaxSize/5), "deeper than 10000"},
		{"a name twice, far down", strings.Repeat(`[`, maxDepth-1) + `{"a": 1, "a": 2}` + strings.Repeat(`]`, maxDepth-1), `"a" occurs twice`},
		{"a megabyte and one byte", strings.Repeat(" ", MaxSize-1) + "{}", "longer than 1 MiB"},
		{"a megabyte of nothing", "{" + strings.Repeat(" ", MaxSize-2) + "}", ""},
		{"the deepest value", capability(nest(deepest)), ""},
		{"one deeper, in the third line", "\n\n" + capability(nest(deepest+1)), "policy line 3: lists and objects"},
		{"brackets in a string", capability(`"\\\"` + open(maxDepth+1) + `"`), ""},
		{"brackets in comments", "// " + open(maxDepth+1) + " \"\n/* " + open(maxDepth+1) + " \" // */{}", ""},
		{"behind a comment", "/**/" + nest(maxDepth+1), "deeper than 10000"},
		{"behind a string", `["/*", "\"//", ` + nest(maxDepth), "deeper than 10000"},
		{"a comment that does not end", "/* " + nest(maxDepth+1), "hujson"},
	} {
		_, err := Parse(c.policy)
		if err == nil && c.says != "" || err != nil && (c.says == "" || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: got %v, want %q", c.why, err, c.says)
		}
	}
}

func TestNodeAttrs(t *testing.T) {
	t.Parallel()
	p, err := Parse(`{` + declared + `"nodeAttrs": [
		{"target": ["tag:tka", "group:dev"], "attr": ["funnel", "x"]},
		{"target": ["*"], "app": {"tailscale.com/app-connectors": [{"name": "c"}]}},
	]}`)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"tka":   `{"funnel":null,"tailscale.com/app-connectors":[{"name":"c"}],"x":null}`,
		"alice": `{"funnel":null,"tailscale.com/app-connectors":[{"name":"c"}],"x":null}`,
		"eve":   `{"tailscale.com/app-connectors":[{"name":"c"}]}`,
	} {
		if got, err := json.Marshal(p.Attrs(imagined()[name])); err != nil || string(got) != want {
			t.Errorf("%s: %s %v, want %s", name, got, err, want)
		}
	}
}

// TB-05: for any input, Parse returns an error or a valid policy. A valid policy compiles for every node, gives a
// tagged node no rights of a person, and stays valid.
func FuzzPolicy(f *testing.F) {
	f.Add(`{` + declared + `"grants": [
		// who works here
		{"src": ["*"], "dst": ["*"], "ip": ["*"]},
		{"src": ["group:dev"], "dst": ["tag:tka"], "app": {"tailplane.dev/cap/access": [{"role": "admin"}]}},
	], "nodeAttrs": [{"target": ["tag:tka"], "attr": ["funnel"]}]}`)
	f.Add("[[/* [ */ \"\\\"[\", // ]\n {\"/*\": [\"//\"]}]]")
	f.Add(`{` + declared + `"acls": [{"action": "accept", "src": ["*"], "dst": ["[fd7a::1]:22", "*:*"]}]}`)
	f.Add(`{"tests": [{"src": "a@b.c", "deny": ["10.0.0.1:1"]}], /* c */}`)
	f.Add(`{` + declared + `"grants": [{"src": ["autogroup:member"], "dst": ["autogroup:self", "svc:web", "lan"], "ip": ["tcp:1-2"]}]}`)
	f.Add(`{"grants": [{"src": ["*"], "dst": ["*"], "app": {"a.b/c": [null, 1, {"~/": "\u0000"}]}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := hujson.Parse([]byte(text)); err == nil {
			if n := levels(&v); tooDeep(text, n) >= 0 || n > 0 && tooDeep(text, n-1) < 0 {
				t.Errorf("%d levels; a bracket too many at %d, and without the last one at %d", n, tooDeep(text, n), tooDeep(text, n-1))
			}
		}
		p, err := Parse(text)
		if err != nil {
			if p != nil || err.Error() == "" {
				t.Fatalf("refused with %v and %v", p, err)
			}
			return
		}
		describe(p)
		for name, n := range imagined() {
			p.Attrs(n)
			if n.Login == "" {
				for _, sel := range []selector{{kind: member}, {kind: person, name: ""}, {kind: person, name: "tagged-devices"}, {kind: shared}} {
					if p.covers(sel, n) {
						t.Errorf("%v covers the tagged node %s", sel, name)
					}
				}
			}
		}
		for _, g := range p.grants {
			if len(g.ip) == 0 && len(g.app) == 0 || len(g.src) == 0 {
				t.Errorf("an empty rule was accepted: %+v", g)
			}
		}
		if _, err := Parse(text); err != nil {
			t.Errorf("accepted, then refused: %v", err)
		}
	})
}

// levels returns the nesting depth of lists and objects, as the parser sees it.
func levels(v *hujson.Value) (most int) {
	switch x := v.Value.(type) {
	case *hujson.Array:
		for i := range x.Elements {
			most = max(most, levels(&x.Elements[i]))
		}
	case *hujson.Object:
		for i := range x.Members {
			most = max(most, levels(&x.Members[i].Value))
		}
	default:
		return 0
	}
	return most + 1
}

// Headscale's dialect refuses the autogroups that Headscale does not have, and names users without an e-mail address.
func TestHeadscaleDialect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy string
		err    string
	}{
		{`{"groups": {"group:a": ["pat@", "kim@example.com"]}, "tagOwners": {"tag:t": ["group:a"]}, "grants": [{"src": ["pat@", "autogroup:member"], "dst": ["tag:t"], "ip": ["*"]}]}`, ""},
		{`{"tagOwners": {"tag:t": ["autogroup:admin"]}}`, `"autogroup:admin": Headscale has no such autogroup`},
		{`{"tagOwners": {"tag:t": ["autogroup:owner"]}}`, `"autogroup:owner": Headscale has no such autogroup`},
		{`{"grants": [{"src": ["autogroup:shared"], "dst": ["*"], "ip": ["*"]}]}`, `"autogroup:shared": Headscale has no such autogroup`},
	} {
		_, err := ParseHeadscale(tt.policy)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: error %v, want %q", tt.policy, err, tt.err)
		}
	}
	if _, err := Parse(`{"grants": [{"src": ["pat@"], "dst": ["*"], "ip": ["*"]}]}`); err == nil {
		t.Error("Tailscale's dialect accepts pat@")
	}
}
