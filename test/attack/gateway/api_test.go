package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// GW-06. Tailscale's API refuses, fails, rate-limits, disconnects and returns empty results. The gateway reports each
// case, keeps what it knew, respects a requested pause, and recovers from all of it without help.
//
// Guard: gateway.KnownServices.Update, controller.discoveryReconciler, tailnets' classes and circuit.
func TestGW06_API(t *testing.T) {
	w := start(t)
	attacktest.Eventually(t, attacktest.Long, "web is served", func() bool { return w.webServed(t) })
	const object, attachment = "TailscaleService shop/eg-tailnets-web", "TailscaleGateway shop/eg-tailnets"
	uid := w.get(t, object).GetUID()
	n := 60
	// look makes the gateway read the tailnet again, with a different request value each time.
	look := func() {
		n++
		w.patch(t, attachment, fmt.Sprintf(`{"spec":{"tailnets":[{"tailnetRef":{"name":"corp"},"routeGeneration":{"egress":{}},"serviceDiscovery":{"syncInterval":"%ds"}}]}}`, n))
	}
	defer func() { // restores the initial state
		w.patch(t, attachment, `{"spec":{"tailnets":[{"tailnetRef":{"name":"corp"},"routeGeneration":{"egress":{}}}]}}`)
	}()
	said := func() (stale bool, message string) {
		list, _, err := unstructured.NestedSlice(w.get(t, attachment).Object, "status", "tailnets")
		if err != nil || len(list) != 1 {
			return false, ""
		}
		one := list[0].(map[string]any)
		stale, _ = one["stale"].(bool)
		message, _ = one["message"].(string)
		return stale, message
	}
	kept := func(why string) {
		t.Helper()
		switch u := w.get(t, object); {
		case u == nil:
			t.Errorf("%s: the service is deleted: u is nil", why)
		case u.GetUID() != uid:
			t.Errorf("%s: the service is deleted: u.GetUID() != uid", why)
		case u.GetDeletionTimestamp() != nil:
			t.Errorf("%s: the service is deleted: u.GetDeletionTimestamp() is not nil", why)
		}
		if !w.webServed(t) {
			t.Errorf("%s: the route is deleted", why)
		}
	}
	for _, x := range []struct {
		why   string
		fault tsapi.Fault
	}{
		{"401", tsapi.Fault{Status: 401}}, {"403", tsapi.Fault{Status: 403}}, {"404", tsapi.Fault{Status: 404}},
		// Only as many failures as are needed to be reported; more would open the circuit breaker for a minute.
		{"500", tsapi.Fault{Status: 500, Times: 3}}, {"HTML", tsapi.Fault{HTML: true, Times: 3}}, {"cut off", tsapi.Fault{Truncate: true, Times: 3}},
		{"429", tsapi.Fault{Status: 429, Header: http.Header{"Retry-After": {"2"}}, Times: 1}},
	} {
		from := len(w.corp.Requests())
		x.fault.Route = "GET /tailnet/{tailnet}/devices"
		remove := w.corp.Fault(x.fault)
		look()
		message := ""
		attacktest.Eventually(t, attacktest.Long, x.why+" is reported", func() (stale bool) { stale, message = said(); return stale })
		kept(x.why)
		if len(message) < 10 {
			t.Errorf("%s: the message is %q", x.why, message)
		}
		w.says(t, attachment, "Degraded", "True/APIUnavailable")
		remove()
		if x.why != "429" { // it recovers from that in time
			look()
		}
		attacktest.Eventually(t, attacktest.Long, x.why+" is over", func() bool { stale, _ := said(); return !stale })
		kept(x.why)
		if x.why == "429" {
			var refused, next time.Time
			for _, r := range w.corp.Requests()[from:] {
				if r.Client != w.corp.own.ID {
					continue
				}
				if r.Status == 429 {
					refused = r.At
				} else if !refused.IsZero() && next.IsZero() {
					next = r.At
				}
			}
			switch pause := next.Sub(refused); {
			case refused.IsZero():
				t.Errorf("requested again: refused.IsZero() is true; pause = %v", pause)
			case next.IsZero():
				t.Errorf("requested again: next.IsZero() is true; pause = %v", pause)
			case pause < 1900*time.Millisecond:
				t.Errorf("requested again: pause = %v, want at least %v", pause, 1900*time.Millisecond)
			}
		}
	}
	// Empty answers, three times. The gateway also requires five minutes before it accepts them.
	empty := []func(){w.corp.Fault(tsapi.Fault{Route: "GET /tailnet/{tailnet}/devices", Status: 200, Body: `{"devices":[]}`}),
		w.corp.Fault(tsapi.Fault{Route: "GET /tailnet/{tailnet}/vip-services", Status: 200, Body: `{"vipServices":[]}`})}
	for range 4 {
		before := w.corp.count("GET /tailnet/{tailnet}/vip-services")
		generation := w.get(t, attachment).GetGeneration()
		look()
		attacktest.Eventually(t, attacktest.Long, "an empty list was read", func() bool {
			is := w.get(t, attachment)
			seen, _, _ := unstructured.NestedInt64(is.Object, "status", "observedGeneration")
			return seen > generation && w.corp.count("GET /tailnet/{tailnet}/vip-services") > before
		})
		kept("an empty list")
	}
	for _, remove := range empty {
		remove()
	}
	look()
	kept("afterwards")
}

// GW-11. Ten reconciles without a change create no key. A changed Secret is used after one verification. A resource
// of one tailnet is never requested with the credential of another. No secret is stored anywhere except in Secrets.
//
// Guard: gateway.NextTailnetAction, controller.tailnetReconciler.credential, tsapi.Clients, secret.Text.
func TestGW11_QuietAndSecret(t *testing.T) {
	w := start(t)
	const corp, newKey = "TailscaleTailnet corp", "POST /tailnet/{tailnet}/keys"
	w.says(t, corp, "Ready", "True/Ready")
	w.says(t, "TailscaleTailnet dev", "Ready", "True/Ready")
	attacktest.Eventually(t, attacktest.Long, "web is served", func() bool { return w.webServed(t) })
	settled := func() int {
		last, at := -1, time.Now()
		attacktest.Eventually(t, attacktest.Long, "no further keys are created", func() bool {
			if n := w.corp.count(newKey); n != last {
				last, at = n, time.Now()
			}
			return time.Since(at) > time.Second
		})
		return last
	}
	before := settled()
	for i := range 10 {
		seen := strings.Count(w.Output(), "\n")
		from := attacktest.FileSize(t, w.asked)
		w.patch(t, corp, `{"metadata":{"annotations":{"test/look":"`+strconv.Itoa(i)+`"}}}`)
		attacktest.Eventually(t, attacktest.Long, "it reconciles", func() bool {
			return slices.ContainsFunc(w.requests(t, from), func(r attacktest.KubeRequest) bool {
				return r.ObjectRef.Resource == "secrets" && r.ObjectRef.Name == "corp" && r.Verb == "get"
			}) || strings.Count(w.Output(), "\n") > seen+1000
		})
	}
	if n := settled() - before; n != 0 {
		t.Errorf("ten reconciles created %d keys", n)
	}

	// Another OAuth client in the Secret: after one verification, all requests use it.
	old := w.corp.own
	next := w.corp.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator")
	w.corp.own = next
	patch, err := json.Marshal(map[string]any{"stringData": map[string]string{"client_id": next.ID, "client_secret": next.Secret}})
	if err != nil {
		t.Fatal(err)
	}
	at := len(w.corp.Requests())
	w.patch(t, "Secret "+gatewayNamespace+"/corp", string(patch))
	attacktest.Eventually(t, attacktest.Long, "the new client proves itself", func() bool { return w.corp.count(newKey) > 0 })
	w.says(t, corp, "Ready", "True/Ready")
	proofs := func() (n int) {
		for _, r := range w.corp.Requests()[at:] {
			if r.Route == newKey && r.Client == next.ID {
				n++
			}
		}
		return n
	}
	settled()
	if n := proofs(); n != 1 {
		t.Errorf("the new client was proved %d times", n)
	}
	from := len(w.corp.Requests())
	w.corp.RevokeClient(old.ID) // nothing needs the old client any longer
	w.patch(t, "TailscaleGateway shop/eg-tailnets", `{"metadata":{"annotations":{"test/rotated":"1"}}}`)
	w.patch(t, corp, `{"metadata":{"annotations":{"test/look":"rotated"}}}`)
	w.says(t, corp, "Ready", "True/Ready")
	for _, r := range w.corp.Requests()[from:] {
		if r.Client == old.ID {
			t.Errorf("the former client still sends requests: %s", r.Route)
		}
	}

	// No tailnet received a request with the credential of another.
	for name, pair := range map[string][2]*tailnetAPI{"corp": {w.corp, w.dev}, "dev": {w.dev, w.corp}} {
		for _, r := range pair[0].Requests() {
			if r.Client == pair[1].own.ID || r.Status == http.StatusUnauthorized && r.Route == "POST /oauth/token" {
				t.Errorf("%s got a request with another tailnet's credential: %s %d", name, r.Route, r.Status)
			}
		}
	}

	// Canaries: the test searches for every secret in all other places.
	canaries := map[string]string{"a client's secret": next.Secret, "the former client's": old.Secret, "the other tailnet's": w.dev.own.Secret}
	var secrets corev1.SecretList
	if err := w.admin.List(t.Context(), &secrets); err != nil {
		t.Fatal(err)
	}
	keys := 0
	for _, s := range secrets.Items {
		for field, b := range s.Data {
			if field == "authkey" && len(b) > 0 || field == "tls.key" {
				canaries[s.Name+" "+field] = string(b)
				keys++
			}
		}
	}
	if keys < 3 {
		t.Errorf("only %d keys to look for", keys)
	}
	places := map[string]string{"the log": w.Output(), "the metrics": metricLines(t, w.Probes, ""), "the arguments": read(t, fmt.Sprintf("/proc/%d/cmdline", w.PID())),
		"the environment": read(t, fmt.Sprintf("/proc/%d/environ", w.PID())), "the API server's log": read(t, w.asked)}
	for _, kinds := range []string{"tailscaletailnets,tailscaleproxygroups,tailscaleservices,tailscalegateways,tailscaleroutepolicies", "statefulsets,pods,configmaps,services,serviceaccounts,endpointslices", "events", "roles,rolebindings,networkpolicies,poddisruptionbudgets"} {
		out, errs, code := w.kubectl(t, "get", kinds, "-A", "-o", "json")
		if code != 0 {
			t.Fatal(errs)
		}
		places[kinds] = out
	}
	for where, text := range places {
		for what, canary := range canaries {
			if strings.Contains(text, canary) || strings.Contains(text, jsonText(canary)) {
				t.Errorf("%s is in %s", what, where)
			}
		}
	}
}

// jsonText returns a text as it is escaped in JSON.
func jsonText(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return s
	}
	return strings.Trim(string(b), `"`)
}
