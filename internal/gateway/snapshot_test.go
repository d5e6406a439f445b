package gateway

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		host, domain string
		want         bool
	}{
		{"*", "*", true}, {"*", "a.org", true}, {"*", "*.a.org", true},
		{"a.org", "a.org", true}, {"a.org", "*", false}, {"a.org", "b.a.org", false},
		{"*.a.org", "b.a.org", true}, {"*.a.org", "c.b.a.org", true}, {"*.a.org", "*.a.org", true}, {"*.a.org", "*.b.a.org", true},
		{"*.a.org", "a.org", false}, {"*.a.org", ".a.org", false}, {"*.a.org", "xa.org", false}, {"*.a.org", "*", false},
	} {
		if got := (Route{Hosts: []string{"x.example", c.host}}).Covers(c.domain); got != c.want {
			t.Errorf("%s covers %s: %v", c.host, c.domain, got)
		}
	}
}

// Snapshot.Rule returns a rule without its Gateway. All Gateways that have it agree, or the result
// reports that they differ. A Snapshot that Build did not create gives the same results.
func TestRuleOfSeveralGateways(t *testing.T) {
	key := func(i int) RuleKey { return RuleKey{"HTTPRoute", Name{"a", "r"}, i} }
	one := &Gateway{Name: Name{"a", "one"}, Rules: []Rule{{Key: key(0), OwnWeight: 1}, {Key: key(1), OwnWeight: 1}, {Key: key(2)}}}
	two := &Gateway{Name: Name{"a", "two"}, Rules: []Rule{{Key: key(0), OwnWeight: 1}, {Key: key(1), OwnWeight: 2}}}
	plain := &Snapshot{Gateways: map[Name]*Gateway{one.Name: one, two.Name: two}}
	built := &Snapshot{Gateways: plain.Gateways, rules: plain.agreements()}
	for _, s := range []*Snapshot{plain, built} {
		for i, want := range []struct{ agreed, ok bool }{{true, true}, {false, true}, {true, true}, {false, false}} {
			rule, agreed, ok := s.Rule(key(i))
			switch {
			case agreed != want.agreed:
				t.Errorf("rule: agreed = %v, want %v", agreed, want.agreed)
			case ok != want.ok:
				t.Errorf("rule: ok = %v, want %v", ok, want.ok)
			case ok && !reflect.DeepEqual(rule, one.Rules[i]):
				t.Errorf("rule: ok && !reflect.DeepEqual(rule, one.Rules[i]); %d, rule = %+v, agreed = %v, %v", i, rule, agreed, ok)
			}
		}
	}
	if _, ok := two.Rule(key(2)); ok {
		t.Error("the second Gateway has a rule that it has not")
	}
}

func TestListenerOf(t *testing.T) {
	g := &Gateway{Listeners: []Listener{{Restrict: true}, {Section: "open"}}}
	for section, want := range map[string]bool{"open": false, "other": true, "": true} {
		if l, ok := g.Listener(section); !ok || l.Restrict != want {
			t.Errorf("%q: %+v, %v", section, l, ok)
		}
	}
	if _, ok := (&Gateway{}).Listener("x"); ok {
		t.Error("an unknown Gateway has a listener")
	}
}

// Every field of every struct in a Gateway changes the revision, except the revision itself,
// because each can change what is rendered.
func TestRevision(t *testing.T) {
	full := func() *Gateway {
		g := &Gateway{}
		fill(reflect.ValueOf(g).Elem())
		return g
	}
	want := full().revision()
	if len(want) != 16 || want != full().revision() {
		t.Fatalf("%q, then %q", want, full().revision())
	}
	var paths int
	var walk func(path string, at func(*Gateway) reflect.Value)
	walk = func(path string, at func(*Gateway) reflect.Value) {
		v := at(full())
		switch {
		case strings.HasPrefix(v.Type().PkgPath(), "net/netip"), v.Kind() != reflect.Struct && v.Kind() != reflect.Pointer && v.Kind() != reflect.Slice:
			g := full()
			at(g).SetZero()
			if paths++; (g.revision() == want) != (path == ".Revision") {
				t.Errorf("the revision and %s", path)
			}
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, func(g *Gateway) reflect.Value { return at(g).Field(i) })
			}
		case v.Kind() == reflect.Pointer:
			walk(path, func(g *Gateway) reflect.Value { return at(g).Elem() })
		default:
			walk(path+"[0]", func(g *Gateway) reflect.Value { return at(g).Index(0) })
		}
	}
	walk("", func(g *Gateway) reflect.Value { return reflect.ValueOf(g).Elem() })
	if paths < 60 {
		t.Errorf("%d fields", paths)
	}
}

// fill sets every field to a value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if strings.HasPrefix(v.Type().PkgPath(), "net/netip") {
			switch v.Type().Name() {
			case "Prefix":
				v.Set(reflect.ValueOf(tailnetIPv4))
			case "AddrPort":
				v.Set(reflect.ValueOf(netip.MustParseAddrPort("10.0.0.1:80")))
			}
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(7)
	default:
		panic(v.Type().String())
	}
}
