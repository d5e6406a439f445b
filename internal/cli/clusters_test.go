package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// newListServer returns an access server of prod-eu that sends the bytes of answer as its list of clusters, with a proof.
func newListServer(t *testing.T, answer func(w http.ResponseWriter, r *http.Request) []byte) (*accessServer, *httptest.Server) {
	t.Helper()
	d, real := newAccessServer(t, "prod-eu")
	real.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/memberlist") {
			d.ServeHTTP(w, r)
			return
		}
		text := answer(w, r)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(httpapi.ProofHeader, d.key.Prove(r.Header.Get(httpapi.NonceHeader), r.Host, text))
		w.Write(text)
	}))
	t.Cleanup(srv.Close)
	return d, srv
}

// allowHTTP makes the settings of m accept servers by http.
func allowHTTP(t *testing.T, m *machine, urls ...string) {
	t.Helper()
	text := m.read(t, "config/tka/config.yaml")
	for i, u := range urls {
		text += fmt.Sprintf("- {name: other%d, url: %q, insecureHTTP: true}\n", strings.Count(text, "\n")+i, u)
	}
	m.write(t, "config/tka/config.yaml", text)
}

// GO-07: doctor shows the records that a server does not list as data only. Any node on the path may have sent the header, so it has no
// other effect.
func TestGO07_doctor_names_refused_records(t *testing.T) {
	_, srv := newListServer(t, func(w http.ResponseWriter, _ *http.Request) []byte {
		for range 50 {
			w.Header().Add(gossip.RefusedHeader, "n7 of cluster c: apiEndpoint: 10.0.0.1 is a private address\u009b2J")
		}
		return []byte(`[]`)
	})
	m := newMachine(t, srv.URL)
	r := m.run("doctor")
	switch n := strings.Count(r.out, "n7 of cluster c: apiEndpoint: 10.0.0.1 is a private address"); {
	case n == 0:
		t.Errorf("named: n = %v", n)
	case n > 8:
		t.Errorf("named: n = %v, want at most 8", n)
	case strings.ContainsAny(r.out, unprintable):
		t.Errorf("named: strings.ContainsAny(r.out, unprintable) is true; %d, %d, %q", n, r.code, r.out)
	case !strings.Contains(r.out, "gossip.allowEndpoints"):
		t.Errorf("named: r.out = %q does not contain %q", r.out, "gossip.allowEndpoints")
	}
}

const unprintable = "\x1b\x07\r\u202e\u009b\u200b"

// GO-08, CL-04: the content of a list is data. Every output format shows it, does not control the terminal, and parses back to the
// original.
func TestGO08_a_list_is_data(t *testing.T) {
	evil := "\x1b[31mprod\x1b]0;x\x07\r\u202e\u009b2J\u200b$(touch x)\n'"
	list, err := json.Marshal([]map[string]any{{"apiEndpoint": evil, "apiPort": 6443, "labels": map[string]string{evil: evil, "env": "prod"}, "name": evil, "id": evil, "url": evil,
		"state": evil, "verified": true, "caHash": evil, "software": evil, "members": []any{map[string]any{"node": evil, "host": evil, "state": evil}}},
		{"name": "b", "id": evil, "url": "https://" + evil, "state": "alive", "verified": true, "key": keyFor("b").Public(), "lastSeen": "9999-12-31T23:59:59Z"},
		{"name": "c", "state": "alive", "lastSeen": "0001-01-01T00:00:00Z", "labels": nil, "members": nil}})
	if err != nil {
		t.Fatal(err)
	}
	_, srv := newListServer(t, func(w http.ResponseWriter, _ *http.Request) []byte {
		w.Header().Set(gossip.HiddenHeader, "$(touch x)") // not proved, and not used
		return list
	})
	m := newMachine(t, srv.URL)
	for _, format := range []string{"table", "wide", "json", "yaml", "name"} {
		for _, more := range [][]string{nil, {"--all"}, {"-l", "env=prod"}} {
			r := m.run(append([]string{"clusters", "-o", format}, more...)...)
			switch {
			case r.code != 0:
				t.Errorf("r.code = %v, want 0; format = %s; more = %v", r.code, format, more)
			case r.out == "":
				t.Errorf("r.out is empty; format = %s, more = %v, %d, %q, %q", format, more, r.code, r.out, r.err)
			case strings.ContainsAny(r.out+r.err, unprintable):
				t.Errorf("strings.ContainsAny(r.out+r.err, unprintable) is true; format = %s, more = %v, %d, %q, %q",
					format, more, r.code, r.out, r.err)
			}
		}
	}
	var got struct {
		Items []struct {
			Name   string
			Labels map[string]string
			Usable bool
			Doubt  string
		}
	}
	r := m.run("clusters", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || len(got.Items) != 3 {
		t.Fatalf("%v: %s", err, r.out)
	}
	for _, it := range got.Items {
		switch {
		case it.Usable:
			t.Errorf("it.Usable is true; %+v", it)
		case it.Doubt == "":
			t.Errorf("it.Doubt is empty; %+v", it)
		case it.Labels == nil:
			t.Error("it.Labels is nil")
		}
	}
	if i := got.Items[0]; i.Name != evil || i.Labels[evil] != evil {
		t.Errorf("%+v", i)
	}
	for _, cmd := range [][]string{{"login", "--cluster", evil}, {"login", "--cluster", "b"}, {"login", "--all"}, {"doctor"}, {"__complete", "login", "--cluster", ""}} {
		if r := m.run(cmd...); strings.ContainsAny(r.out+r.err, unprintable) || strings.Contains(r.out, "touch x)\n") {
			t.Errorf("%q: code %d\n%q\n%q", cmd, r.code, r.out, r.err)
		}
	}
}

// GO-05: invalid or oversized lists.
func TestGO05_lists_that_are_none(t *testing.T) {
	entry := func(i int) string { return fmt.Sprintf(`{"name":"c%d","state":"dead"}`, i) }
	many := func(n int, one func(int) string) string {
		var all []string
		for i := range n {
			all = append(all, one(i))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	for _, tt := range []struct {
		text string
		code int
		word string
	}{
		{`{}`, 1, "the answer does not have the expected form"},
		{`"x"`, 1, "the answer does not have the expected form"},
		{`[1]`, 1, "the answer does not have the expected form"},
		{`[{"name":1}]`, 1, "the answer does not have the expected form"},
		{`[{"apiPort":-1}]`, 1, "the answer does not have the expected form"},
		{`[{"apiPort":65536}]`, 1, "the answer does not have the expected form"},
		{`[{"labels":["a"]}]`, 1, "the answer does not have the expected form"},
		{`[{"verified":"yes"}]`, 1, "the answer does not have the expected form"},
		{`[{"lastSeen":"yesterday"}]`, 1, "the answer does not have the expected form"},
		{`[{"key":"ed25519:short"}]`, 1, "the answer does not have the expected form"},
		{`[{"key":{}}]`, 1, "the answer does not have the expected form"},
		{`[]]`, 1, "the answer does not have the expected form"},
		{``, 1, "the answer does not have the expected form"},
		{`<html>`, 1, "the answer does not have the expected form"},
		{strings.Repeat("[", 100_000), 1, "the answer does not have the expected form"},
		{`[]`, 0, "No cluster matches"},
		{`[null]`, 0, ""},
		{many(10_000, entry), 0, "Not shown: 10000 clusters, dead or left."},
		{many(10_000, func(i int) string {
			return fmt.Sprintf(`{"name":"c%d","state":"alive","labels":{"a":%q}}`, i, strings.Repeat("x", 1700))
		}), 1, "larger than"},
	} {
		_, srv := newListServer(t, func(http.ResponseWriter, *http.Request) []byte { return []byte(tt.text) })
		m := newMachine(t, srv.URL)
		for _, cmd := range [][]string{{"clusters"}, {"login", "--cluster", "c5000"}} {
			r := m.run(cmd...)
			code := tt.code
			if cmd[0] == "login" && code == 0 {
				code = 3 // no cluster has that name, or it is unverified
			}
			switch {
			case r.code != code:
				t.Errorf("r.code = %v, want %v; %.60s; %.500s", r.code, code, tt.text, r.out)
			case cmd[0] == "clusters" && !strings.Contains(r.err, tt.word):
				t.Errorf(`cmd[0] == "clusters" && !strings.Contains(r.err, tt.word); %.60s, %v, %d, code = %d, %.500s, %.2000s`,
					tt.text, cmd, r.code, code, r.out, r.err)
			case len(r.err) > 64<<10:
				t.Errorf("len(r.err) = %v, want at most %v; %.60s; %.500s", len(r.err), 64<<10, tt.text, r.out)
			}
		}
	}
	// all 10,000 are shown, and the doubts are reported in a few lines
	_, srv := newListServer(t, func(http.ResponseWriter, *http.Request) []byte { return []byte(many(10_000, entry)) })
	m := newMachine(t, srv.URL)
	switch r := m.run("clusters", "--all"); {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0", r.code)
	case strings.Count(r.out, "\n") != 10_001:
		t.Errorf(`code: strings.Count(r.out, "\n") = %v, want 10_001`, strings.Count(r.out, "\n"))
	case strings.Count(r.err, "\n") > 50:
		t.Errorf(`code: strings.Count(r.err, "\n") = %v, want at most 50`, strings.Count(r.err, "\n"))
	}
	if r := m.run("login", "--all"); r.code != 0 || strings.Count(r.out, "\n") != 2 { // dead clusters are not tried: one is left
		t.Errorf("code %d\n%.2000s%.2000s", r.code, r.out, r.err)
	}
}

// tka rejects a list without a proof.
func TestGO03_a_list_is_proved(t *testing.T) {
	d, real := newAccessServer(t, "prod-eu")
	d.addCluster(real.URL)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/memberlist") {
			r.Header.Del(httpapi.NonceHeader)
		}
		d.ServeHTTP(w, r)
	}))
	defer srv.Close()
	m := newMachine(t, srv.URL)
	for _, cmd := range [][]string{{"clusters"}, {"login", "--cluster", "prod-us"}, {"login", "--all"}} {
		switch r := m.run(cmd...); {
		case r.code != 3:
			t.Errorf("r.code = %v, want 3; %v", r.code, cmd)
		case r.out != "":
			t.Errorf("r.out = %q, want none; %v", r.out, cmd)
		case !strings.Contains(r.err, "is not the one that this machine knows"):
			t.Errorf("r.err = %q does not contain %q; %v", r.err, "is not the one that this machine knows", cmd)
		}
	}
}
