package gateway_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

var discoveryStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// discoveredServices returns services with these names.
func discoveredServices(names string) (list []gateway.DiscoveredService) {
	for n := range strings.FieldsSeq(names) {
		list = append(list, gateway.DiscoveredService{Service: n})
	}
	return list
}

func serviceNames(list []gateway.DiscoveredService) string {
	var all []string
	for _, f := range list {
		all = append(all, f.Service)
	}
	return strings.Join(all, " ")
}

// GTW-26: discovery selects by tag, by svc: name and by pattern, with exclusions. A name that
// cannot become part of a generated name is left out with a message.
func TestSelect(t *testing.T) {
	vips := []tsapi.Service{
		{Name: "svc:web", Ports: []string{"tcp:443", "tcp:80", "udp:53"}, Tags: []string{"tag:k8s"}},
		{Name: "svc:db", Ports: []string{"do-not-validate"}}, {Name: "svc:secret"}, {Name: "web"}, {Name: "svc:a.b"}, {Name: "svc:\x1b[2J"},
	}
	devices := []tsapi.Device{
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
		list, _ := gateway.SelectServices(gatewayv1alpha1.ServiceDiscovery{
			Patterns: strings.Fields(c.patterns), ExcludePatterns: strings.Fields(c.exclude), Tags: strings.Fields(c.tags)}, vips, devices)
		if got := serviceNames(list); got != c.want {
			t.Errorf("%q without %q, tags %q: %q, want %q", c.patterns, c.exclude, c.tags, got, c.want)
		}
	}
	list, omitted := gateway.SelectServices(gatewayv1alpha1.ServiceDiscovery{Patterns: []string{"svc:*"}}, vips, devices)
	web := list[slices.IndexFunc(list, func(f gateway.DiscoveredService) bool { return f.Service == "web" })]
	want := gateway.DiscoveredService{Service: "web", VIP: true, Tags: []string{"tag:edge", "tag:k8s", "tag:svc-web"}, Ports: []uint16{80, 443}}
	if !reflect.DeepEqual(web, want) {
		t.Errorf("%+v, want %+v", web, want)
	}
	switch {
	case len(omitted) != 2:
		t.Errorf("len(omitted) = %v, want 2", len(omitted))
	case strings.Contains(omitted[0]+omitted[1], "\x1b"):
		t.Errorf("omitted[0]+omitted[1] = %q contains %q", omitted[0]+omitted[1], "\x1b")
	case !strings.Contains(omitted[1], "DNS label"):
		t.Errorf("omitted[1] = %q does not contain %q", omitted[1], "DNS label")
	}
	for _, c := range []struct {
		ports        []uint16
		wished, want uint16
	}{{[]uint16{80, 443}, 80, 80}, {[]uint16{443, 8080}, 80, 443}, {nil, 80, 80}} {
		if got := (gateway.DiscoveredService{Ports: c.ports}).DefaultPort(c.wished); got != c.want {
			t.Errorf("of %v with %d desired: %d", c.ports, c.wished, got)
		}
	}
}

// GTW-26: the known services of a tailnet. Each line is one minute later. It contains the list of
// the tailnet ("-" is an empty list, "!" an error) and the services that are then known.
func TestKnownServices(t *testing.T) {
	for why, lines := range map[string][]string{
		"an error removes nothing": {
			"a b > a b", "! > a b stale", "! > a b stale", "a b > a b",
		},
		"one list is not enough": {
			"a b > a b", "a > a b", "a b > a b", "a > a b", "a > a",
		},
		"an error between two lists has no effect": {
			"a b > a b", "a > a b", "! > a b stale", "a > a",
		},
		"an empty list must come three times over five minutes": {
			"a b > a b", "- > a b stale", "- > a b stale", "- > a b stale", "- > a b stale", "- > a b stale", "- > ",
		},
		"any other list restarts the count": {
			"a b > a b", "- > a b stale", "- > a b stale", "- > a b stale", "- > a b stale", "b > a b", "- > a b stale", "a b > a b",
		},
		"the last service counts as all services": {
			"a > a", "- > a stale", "- > a stale", "a > a",
		},
		"a service that returns is present": {
			"a b > a b", "a > a b", "a > a", "a b > a b",
		},
		"no service at all": {"- > ", "- > "},
	} {
		t.Run(why, func(t *testing.T) {
			var m gateway.KnownServices
			for i, line := range lines {
				list, want, _ := strings.Cut(line, " > ")
				now := discoveryStart.Add(time.Duration(i) * time.Minute)
				before := fmt.Sprint(m)
				next := m.Update(discoveredServices(strings.Trim(list, "!-")), list == "!", now)
				if fmt.Sprint(m) != before {
					t.Fatal("Next changed its input")
				}
				m = next
				got := serviceNames(m.Services())
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
func TestKnownServicesAfterRestart(t *testing.T) {
	m := gateway.NewKnownServices(discoveredServices("a b"))
	if !m.Stale || serviceNames(m.Services()) != "a b" {
		t.Errorf("%+v", m)
	}
	m = m.Update(nil, false, discoveryStart)
	m = m.Update(discoveredServices("a"), false, discoveryStart.Add(time.Minute))
	if serviceNames(m.Services()) != "a b" {
		t.Errorf("%+v", m)
	}
}

// Errors and empty lists over less than five minutes never remove a service.
func TestKnownServicesSurviveErrors(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := gateway.KnownServices{}.Update(discoveredServices("a b c"), false, discoveryStart)
		now := discoveryStart
		for since := time.Duration(0); since < 5*time.Minute; {
			m = m.Update(nil, r.IntN(2) == 0, now.Add(since))
			since += time.Duration(1+r.IntN(90)) * time.Second
			if serviceNames(m.Services()) != "a b c" {
				t.Fatalf("seed %d: %v after %v", seed, m.Services(), since)
			}
		}
	}
}
