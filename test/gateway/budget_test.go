//go:build linux

package gateway

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/gateway"
	gatewayxds "github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// BenchmarkGateway measures the budgets of GTW-38 for the gateway: Build, and the cost of the hooks with a real Envoy
// Gateway on a real API server. For the hooks it measures the time in the extension server and the time that they add
// to a change in Envoy Gateway. Runs with and without the extension server alternate, with the same program and
// objects.
func BenchmarkGateway(b *testing.B) {
	b.Run("Build", func(b *testing.B) {
		for b.Loop() { // the reported numbers come from many runs, not from this loop
		}
		for _, n := range []int{100, 1000, 5000, 10_000} {
			build(b, n)
		}
	})
	if refused != nil {
		b.Skipf("SKIP namespaces: %v", refused)
	}
	m := newMeasure(b)
	for _, s := range []shape{{routes: 100}, {routes: 1000}, {routes: 2000}, {routes: 5000}, {routes: 1000, ownHosts: true}} {
		b.Run(strings.ReplaceAll(s.String(), " ", "-"), func(b *testing.B) {
			for b.Loop() {
			}
			m.compare(b, s)
		})
	}
}

func build(b *testing.B, n int) {
	o, r := settle(crowd(n))
	g := r.Snapshot.Gateways[eg]
	switch {
	case len(g.Routes) != n/2:
		b.Fatalf("len(g.Routes) = %v, want %v", len(g.Routes), n/2)
	case len(g.Rules) != n/2:
		b.Fatalf("len(g.Rules) = %v, want %v", len(g.Rules), n/2)
	case len(g.Clusters) < n:
		b.Fatalf("len(g.Clusters) = %v, want at least %v", len(g.Clusters), n)
	}
	var took []time.Duration
	for range 10 {
		began := time.Now()
		gateway.Build(o)
		took = append(took, time.Since(began))
	}
	testenv.Budget(fmt.Sprintf("gateway: Build of %d routes", n), middle(took).Seconds(), 1, true, "s")
}

// middle returns the median.
func middle[N int | float64 | time.Duration](all []N) N {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

// A measure is a cluster on which Envoy Gateway is started repeatedly, with or without an extension server.
type measure struct {
	*kubernetesEnv
	*extension
	changes int // number of changes so far
}

// The ways in which the benchmark runs Envoy Gateway.
const (
	alone  = "alone"
	echoed = "with a server that only gives back what it gets" // shows the cost of the call separately from the extension server's work
	withUs = "with us"
	lean   = "with us, lean"
)

// processorTimes is the cost of a change in Envoy Gateway, in seconds: the total time, the time in xDS, and the CPU time of
// Envoy Gateway and the extension server. The CPU time is the mean of several changes, because the system counts it
// in hundredths of a second.
type processorTimes struct{ all, xds, processors float64 }

func newMeasure(b *testing.B) *measure {
	p, own := provide(b, "budget"), b.TempDir()
	p.serve(b, own)
	tls, err := (&gatewayxds.Certificates{Dir: own}).Config()
	if err != nil {
		b.Fatal(err)
	}
	apply(b, p.Cluster, plainGateway, plainRoute("changing", "changing.example.com"))
	return &measure{kubernetesEnv: p, extension: runExtension(b, gatewayxds.Address{Network: "tcp", Addr: wholeExtension}, tls)}
}

// compare makes Envoy Gateway translate a shape without and with the extension server, alternately.
func (m *measure) compare(b *testing.B, s shape) {
	o, documents := s.translated()
	_, r := settle(o)
	for _, p := range o.Policies {
		text, err := yaml.Marshal(p)
		if err != nil {
			b.Fatal(err)
		}
		documents = append(documents, string(text))
	}
	kubectl(b, m.Cluster, "-n", "infra", "delete", "httproutes", "-l", "crowd", "--wait=true")
	kubectl(b, m.Cluster, "-n", "infra", "delete", "tsrp", "--all")
	apply(b, m.Cluster, append(documents, revisionPolicy(r.Snapshot.Gateways[eg].Revision))...)

	ways := []string{alone, echoed, withUs}
	if s.ownHosts {
		ways = append(ways, lean)
	}
	took, hooks := map[string][]processorTimes{}, map[gatewayxds.Hook][]time.Duration{}
	for range 2 {
		for _, way := range ways {
			m.Publish(r.Snapshot)
			if way == echoed {
				m.Publish(&gateway.Snapshot{Gateways: map[gateway.Name]*gateway.Gateway{eg: {Name: eg, Revision: r.Snapshot.Gateways[eg].Revision}}})
			}
			took[way] = append(took[way], m.run(b, way)...)
			calls := m.taken()
			if way == echoed {
				continue
			}
			for _, c := range calls {
				hooks[c.Hook] = append(hooks[c.Hook], c.Took)
			}
		}
	}
	m.tell(s, ways, took, hooks)
}

// run starts Envoy Gateway, waits until it is idle, and makes changes.
func (m *measure) run(b *testing.B, way string) (took []processorTimes) {
	config := m.configured(b, m.at, way == lean)
	if way == alone {
		config, _, _ = strings.Cut(config, "extensionManager:")
	}
	g := m.startConfigured(b, config)
	defer g.stop()
	quiet(b, "Envoy Gateway has translated everything", func() float64 {
		if n := handled("count", "xds", "xds-ir"); n > 0 {
			return n
		}
		return -1
	})
	if asks := way != alone; asks != (len(m.taken()) > 0) || asks && way != echoed && m.last(eg).Routes < injected {
		b.Fatalf("%s: the result: %+v", way, m.last(eg))
	}
	used := m.used(b, g)
	for range 10 {
		m.changes++
		api, xds := handled("count", "gateway-api", "provider-resources"), handled("count", "xds", "xds-ir")
		before := processorTimes{all: handled("sum", "gateway-api", "provider-resources"), xds: handled("sum", "xds", "xds-ir")}
		kubectl(b, m.Cluster, "-n", "infra", "patch", "httproute", "changing", "--type=json", "-p", fmt.Sprintf(`[{"op":"replace","path":"/spec/rules/0/matches/0/path/value","value":"/changing/%d"}]`, m.changes))
		looked := time.Now()
		await(b, "a change is translated", func() bool {
			if time.Since(looked) < time.Second/2 { // reading the metrics costs Envoy Gateway some time
				return false
			}
			looked = time.Now()
			return handled("count", "gateway-api", "provider-resources") > api && handled("count", "xds", "xds-ir") > xds
		})
		x := (handled("sum", "xds", "xds-ir") - before.xds) / (handled("count", "xds", "xds-ir") - xds)
		a := (handled("sum", "gateway-api", "provider-resources") - before.all) / (handled("count", "gateway-api", "provider-resources") - api)
		took = append(took, processorTimes{all: a + x, xds: x})
	}
	for i := range took {
		took[i].processors = (m.used(b, g) - used).Seconds() / float64(len(took))
	}
	return took
}

// used returns the CPU time of Envoy Gateway and this process.
func (m *measure) used(b *testing.B, g *process) (all time.Duration) {
	for _, pid := range []int{g.cmd.Process.Pid, os.Getpid()} {
		t, err := testenv.ProcessorTime(pid)
		if err != nil {
			b.Fatal(err)
		}
		all += t
	}
	return all
}

// taken returns the calls so far and clears them.
func (m *measure) taken() []gatewayxds.Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := m.calls
	m.calls = nil
	return calls
}

// handled returns Envoy Gateway's own metric: how often, and for how long, one of its parts handled a message.
func handled(what, runner, message string) float64 {
	return metric("127.0.0.1:19001", "watchable_subscribe_duration_seconds_"+what, fmt.Sprintf("runner=%q", runner), fmt.Sprintf("message=%q", message))
}

func (m *measure) tell(s shape, ways []string, took map[string][]processorTimes, hooks map[gatewayxds.Hook][]time.Duration) {
	each := func(way string) (all, xds, processors float64) {
		var a, x, p []float64
		for _, t := range took[way] {
			a, x, p = append(a, t.all), append(x, t.xds), append(p, t.processors)
		}
		return middle(a), middle(x), middle(p)
	}
	all, xds, processors := each(alone)
	for _, way := range ways[1:] {
		a, x, p := each(way)
		if way != echoed {
			testenv.Budget(fmt.Sprintf("gateway: %s: added %s", s, way), 100*(a/all-1), 10, true, "%")
		}
		fmt.Printf("    a change: %.1f ms alone and %.1f ms %s; its xDS part %.1f ms and %.1f ms; processors %.0f ms and %.0f ms (medians of %d)\n",
			1000*all, 1000*a, way, 1000*xds, 1000*x, 1000*processors, 1000*p, len(took[way]))
	}
	var others []time.Duration
	for _, hook := range gatewayxds.Hooks() {
		times := slices.Sorted(slices.Values(hooks[hook]))
		if len(times) == 0 {
			continue
		}
		fmt.Printf("    %s: called %d times, median %v, p99 %v\n", hook, len(times), middle(times), times[len(times)*99/100])
		if hook == gatewayxds.TranslationHook {
			testenv.Budget(fmt.Sprintf("gateway: %s: Translation for each", s), float64(middle(times).Nanoseconds())/1000/float64(s.routes), 30, true, "us")
			testenv.Budget(fmt.Sprintf("gateway: %s: Translation, p99 of %d", s, len(times)), times[len(times)*99/100].Seconds()*1000, 100, true, "ms")
		} else {
			others = append(others, times...)
		}
	}
	slices.Sort(others)
	testenv.Budget(fmt.Sprintf("gateway: %s: the other hooks, p99 of %d", s, len(others)), float64(others[len(others)*99/100].Nanoseconds())/1000, 200, true, "us")
}
