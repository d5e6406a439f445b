package discovery_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/discovery"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// found returns services with these names.
func found(names string) (list []discovery.Found) {
	for n := range strings.FieldsSeq(names) {
		list = append(list, discovery.Found{Service: n})
	}
	return list
}

func names(list []discovery.Found) string {
	var all []string
	for _, f := range list {
		all = append(all, f.Service)
	}
	return strings.Join(all, " ")
}

// GTW-26: discovery selects by tag, by svc: name and by pattern, with exclusions. A name that
// cannot become part of a generated name is left out with a message.
func TestSelect(t *testing.T) {
	vips := []discovery.VIP{
		{Name: "svc:web", Ports: []string{"tcp:443", "tcp:80", "udp:53"}, Tags: []string{"tag:k8s"}},
		{Name: "svc:db", Ports: []string{"do-not-validate"}}, {Name: "svc:secret"}, {Name: "web"}, {Name: "svc:a.b"}, {Name: "svc:\x1b[2J"},
	}
	devices := []discovery.Device{
		{Tags: []string{"tag:svc-api", "tag:prod"}}, {Tags: []string{"tag:svc-api"}}, {Tags: []string{"tag:svc-web", "tag:edge"}},
		{Tags: []string{"tag:svc-foreign"}, External: true}, {Tags: []string{"tag:other"}}, {},
	}
	for _, c := range []struct{ patterns, exclude, tags, want string }{
		{"svc:*", "svc:secret", "", "api db web"},
		{"svc:w*", "", "", "web"},
		{"svc:web svc:d*", "svc:db", "", "web"},
		{"svc:*", "svc:*", "", ""},
		{"svc:*", "svc:secret", "tag:prod", "api db web"},
		{"svc:a*", "", "tag:prod", "api"},
		{"svc:a*", "", "tag:svc-web", ""},
		{"svc:a*", "", "tag:svc-*", "api"},
		{"", "", "", ""},
	} {
		list, _ := discovery.Select(gatewayv1alpha1.ServiceDiscovery{
			Patterns: strings.Fields(c.patterns), ExcludePatterns: strings.Fields(c.exclude), Tags: strings.Fields(c.tags)}, vips, devices)
		if got := names(list); got != c.want {
			t.Errorf("%q without %q, tags %q: %q, want %q", c.patterns, c.exclude, c.tags, got, c.want)
		}
	}
	list, left := discovery.Select(gatewayv1alpha1.ServiceDiscovery{Patterns: []string{"svc:*"}}, vips, devices)
	web := list[slices.IndexFunc(list, func(f discovery.Found) bool { return f.Service == "web" })]
	want := discovery.Found{Service: "web", VIP: true, Tags: []string{"tag:edge", "tag:k8s", "tag:svc-web"}, Ports: []uint16{80, 443}}
	if !reflect.DeepEqual(web, want) {
		t.Errorf("%+v, want %+v", web, want)
	}
	if len(left) != 2 || strings.Contains(left[0]+left[1], "\x1b") || !strings.Contains(left[1], "DNS label") {
		t.Errorf("%q", left)
	}
	for _, c := range []struct {
		ports        []uint16
		wished, want uint16
	}{{[]uint16{80, 443}, 80, 80}, {[]uint16{443, 8080}, 80, 443}, {nil, 80, 80}} {
		if got := (discovery.Found{Ports: c.ports}).DefaultPort(c.wished); got != c.want {
			t.Errorf("of %v with %d wished: %d", c.ports, c.wished, got)
		}
	}
}

// GTW-26: the known services of a tailnet. Each line is one minute later. It contains the list of
// the tailnet ("-" is an empty list, "!" an error) and the services that are then known.
func TestNext(t *testing.T) {
	for why, lines := range map[string][]string{
		"an error removes nothing": {
			"a b > a b", "! > a b stale", "! > a b stale", "a b > a b",
		},
		"one list is not enough": {
			"a b > a b", "a > a b", "a b > a b", "a > a b", "a > a",
		},
		"an error between two lists does not help, and does not hurt": {
			"a b > a b", "a > a b", "! > a b stale", "a > a",
		},
		"an empty list must come three times over five minutes": {
			"a b > a b", "- > a b stale", "- > a b stale", "- > a b stale", "- > a b stale", "- > a b stale", "- > ",
		},
		"anything in between begins anew": {
			"a b > a b", "- > a b stale", "- > a b stale", "- > a b stale", "- > a b stale", "b > a b", "- > a b stale", "a b > a b",
		},
		"one service is everything too": {
			"a > a", "- > a stale", "- > a stale", "a > a",
		},
		"what comes back is there": {
			"a b > a b", "a > a b", "a > a", "a b > a b",
		},
		"nothing at all is nothing": {"- > ", "- > "},
	} {
		t.Run(why, func(t *testing.T) {
			var m discovery.Memory
			for i, line := range lines {
				list, want, _ := strings.Cut(line, " > ")
				now := start.Add(time.Duration(i) * time.Minute)
				before := fmt.Sprint(m)
				next := m.Next(found(strings.Trim(list, "!-")), list == "!", now)
				if fmt.Sprint(m) != before {
					t.Fatal("Next changed what was known")
				}
				m = next
				got := names(m.Present())
				if m.Stale {
					got += " stale"
				}
				if strings.TrimSpace(got) != strings.TrimSpace(want) {
					t.Fatalf("line %d, %q: %q, want %q", i, line, got, want)
				}
			}
		})
	}
}

// After a restart, all stored services are known and follow the same rules for removal.
func TestRemember(t *testing.T) {
	m := discovery.Remember(found("a b"))
	if !m.Stale || names(m.Present()) != "a b" {
		t.Errorf("%+v", m)
	}
	m = m.Next(nil, false, start)
	m = m.Next(found("a"), false, start.Add(time.Minute))
	if names(m.Present()) != "a b" {
		t.Errorf("%+v", m)
	}
}

// Errors and empty lists over less than five minutes never remove a service.
func TestStorm(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := discovery.Memory{}.Next(found("a b c"), false, start)
		now := start
		for since := time.Duration(0); since < 5*time.Minute; {
			m = m.Next(nil, r.IntN(2) == 0, now.Add(since))
			since += time.Duration(1+r.IntN(90)) * time.Second
			if names(m.Present()) != "a b c" {
				t.Fatalf("seed %d: %v after %v", seed, m.Present(), since)
			}
		}
	}
}
