package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// The limits of SGN-16 for many people at once, and the parameters of the measurement.
const (
	sustainedRate = 100 // sign-ins a second
	sustainedFor  = 60 * time.Second
	liveSignins   = 10_000
	newWithin     = time.Second
	podLimit      = 512 // the chart's memory limit of a server, in MB

	atOnce = 32 // parallel sign-ins, and parallel bare writers
	sample = 800

	people = 20 // people who sign in at regular intervals while the operator re-lists
	every  = 250 * time.Millisecond
)

// BenchmarkSigninMany measures SGN-16 in one run on one system. It first measures sign-ins per second for a minute.
// Then, with 10,000 live sign-ins, it measures the memory of the servers, the writes of a restarted operator, and how
// soon a new sign-in is ready meanwhile.
//
// The API server runs on the same cores. Each rate is therefore compared with the API server's own rates just before
// and after: the writes of the contract without reads, decisions and waits, and an administrator's bare pairs of a
// ServiceAccount and a ClusterRoleBinding.
func BenchmarkSigninMany(b *testing.B) {
	if b.N > 1 {
		return // an earlier round has measured it
	}
	r := start(b)
	ctx, cancel := context.WithTimeout(b.Context(), 28*time.Minute)
	defer cancel()
	admin, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		b.Fatal(err)
	}
	c, s := newCrowd(b, r), newScribe(b, r)
	if _, err := c.press(ctx, "first", 2*atOnce, atOnce); err != nil { // lets the API server initialise new kinds
		b.Fatal(err)
	}
	empty := memory(b, r)

	stopOperator(b, r)
	bareBefore, eachBefore := s.bare(b, ctx, r, "bare-a-", sample)
	pair := pairs(b, ctx, admin, sample)
	startOperator(b, ctx, r)
	settle(b, ctx, r, sample)
	cpu := cpuOf(b, r)
	took, windows, err := c.sustain(ctx, "minute", sustainedFor, atOnce)
	if err != nil {
		b.Fatal(err)
	}
	cpu = cpuOf(b, r).since(cpu)
	left := depth(b, r)
	stopOperator(b, r)
	bareAfter, eachAfter := s.bare(b, ctx, r, "bare-b-", sample)
	bare, pair := (bareBefore+bareAfter)/2, (pair+pairs(b, ctx, admin, sample))/2
	rate := float64(len(took)) / sustainedFor.Seconds()
	_, at := spread(took)
	b.Logf("sustained, %d at a time for %v: %.0f a second (in each sixth of it: %v); login to kubeconfig p50 %v, p99 %v; %v left in the operator's queue",
		atOnce, sustainedFor, rate, windows, at(.50), at(.99), left)
	b.Logf("for comparison: the contract's seven writes alone %.0f a second (ratio %.2f), bare pairs %.0f a second (ratio %.2f)", bare, rate/bare, pair, rate/pair)
	b.Logf("processor time of one sign-in: %v; of its bare writes: API server %v", cpu.each(len(took)), ((eachBefore + eachAfter) / 2).Round(10*time.Microsecond))
	budgetFloor("signin-sustained-per-second", rate, sustainedRate)

	made := 2*atOnce + 2*sample + len(took)
	if rest := liveSignins - made; rest > 0 {
		if err := inParallel(rest, atOnce, func(i int) error {
			return s.bind(ctx, fmt.Sprint("rest-", i), new(v1alpha1.TkaSignin), new(corev1.ServiceAccount))
		}); err != nil {
			b.Fatal(err)
		}
		made = liveSignins
	}
	startOperator(b, ctx, r)
	settle(b, ctx, r, made) // and completes sign-ins that the scribe left incomplete
	full := memory(b, r)
	b.Logf("memory with %d live: access %v, operator %v", 2*atOnce, empty["access"], empty["operator"])
	b.Logf("memory with %d live: access %v, operator %v after its start", made, full["access"], full["operator"])

	// A restart without other requests: the operator must write nothing.
	stopOperator(b, r)
	before := writes(b, ctx, admin)
	began := time.Now()
	startOperator(b, ctx, r)
	working := time.Since(began)
	settle(b, ctx, r, made)
	b.Logf("restart: at work after %v, all %d looked at again after %v", working.Round(time.Millisecond), made, time.Since(began).Round(time.Millisecond))
	written := 0
	for what, n := range writes(b, ctx, admin) {
		if d := n - before[what]; d > 0 {
			b.Logf("written during the re-list: %s %v times", what, d)
			written += int(d)
		}
	}
	budgetCount("signin-relist-writes", written, 0)
	fresh := memory(b, r)
	b.Logf("memory after the restart: access %v, operator %v", fresh["access"], fresh["operator"])
	budgetCount("signin-operator-MB-at-10000", int(fresh["operator"].most>>20), podLimit)
	budgetCount("signin-access-MB-at-10000", int(fresh["access"].most>>20), podLimit)

	// A restart while people sign in, one of them through the tailnet.
	p, err := r.Person(ctx, "dora", "dora@example.com")
	if err != nil {
		b.Fatal(err)
	}
	quiet, _, err := c.arrive(ctx, "quiet", people, every)
	if err != nil {
		b.Fatal(err)
	}
	_, atQuiet := spread(quiet)
	stopOperator(b, r)
	startOperator(b, ctx, r)
	told := make(chan error, 1)
	var dora time.Duration
	go func() {
		began := time.Now()
		err := usable(ctx, p.Client())
		dora = time.Since(began)
		told <- err
	}()
	took, _, err = c.arrive(ctx, "during", people, every)
	if err = errors.Join(err, <-told); err != nil {
		b.Fatal(err)
	}
	settle(b, ctx, r, made)
	first, at := spread(took)
	m := scrape(b, r.Operator)
	b.Logf("a new sign-in while %d are looked at again, one every %v: the first %v, p50 %v, worst of %d %v; one through the tailnet %v; of that the operator took %.0f ms on average",
		made, every, first.Round(time.Millisecond), at(.50), len(took), at(1), dora.Round(time.Millisecond),
		1000*m["tailplane_signin_ready_seconds_sum"]/m["tailplane_signin_ready_seconds_count"])
	b.Logf("for comparison, without other load: p50 %v, worst %v", atQuiet(.50), atQuiet(1))
	budget("signin-new-during-relist", max(at(1), dora.Round(time.Millisecond)), newWithin)
}

// cpuTimes is the CPU time that each process has used.
type cpuTimes map[string]time.Duration

func cpuOf(b *testing.B, r *testenv.Env) cpuTimes {
	b.Helper()
	out := cpuTimes{}
	for name, pid := range map[string]int{"API server": r.Cluster.PID(), "operator": r.Operator.PID(), "access": r.Access.PID(), "crowd and desk": os.Getpid()} {
		out[name] = processorTime(b, pid)
	}
	return out
}

// processorTime returns the CPU time of a process.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	used, err := testenv.ProcessorTime(pid)
	if err != nil {
		b.Skip("SKIP processor time: ", err)
	}
	return used
}

func (c cpuTimes) since(before cpuTimes) cpuTimes {
	for name := range c {
		c[name] -= before[name]
	}
	return c
}

func (c cpuTimes) each(n int) string {
	var s []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		s = append(s, fmt.Sprintf("%s %v", name, (c[name]/time.Duration(n)).Round(10*time.Microsecond)))
	}
	return strings.Join(s, ", ")
}

// writes counts the write requests of all clients to the API server, by resource and verb. It omits Leases, which are
// not part of a re-list, and reviews and tokens, which store nothing.
func writes(b *testing.B, ctx context.Context, k *kubernetes.Clientset) map[string]float64 {
	b.Helper()
	text, err := k.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		b.Fatal(err)
	}
	out := map[string]float64{}
	for s, v := range samples(b, text) {
		if !strings.HasPrefix(s, "apiserver_request_total{") {
			continue
		}
		verb, resource := label(s, "verb"), label(s, "resource")
		switch {
		case verb == "GET", verb == "LIST", verb == "WATCH", resource == "leases", label(s, "subresource") == "token", strings.HasSuffix(resource, "reviews"), resource == "":
		default:
			out[verb+" "+resource+"/"+label(s, "subresource")] += v
		}
	}
	return out
}

// label returns the value of a label in a sample's name. The values that the tests read contain no quotes.
func label(sample, name string) string {
	for _, before := range []string{"{", ","} {
		if _, rest, ok := strings.Cut(sample, before+name+`="`); ok {
			value, _, _ := strings.Cut(rest, `"`)
			return value
		}
	}
	return ""
}

func samples(b *testing.B, text []byte) map[string]float64 {
	b.Helper()
	out := map[string]float64{}
	for line := range bytes.Lines(text) {
		line := string(bytes.TrimSpace(line))
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			b.Fatalf("%q: %v", line, err)
		}
		out[line[:i]] = v
	}
	return out
}

// scrape reads the metrics of one of the product's processes.
func scrape(b *testing.B, p *testenv.Process) map[string]float64 {
	b.Helper()
	address := ""
	for line := range strings.Lines(p.Output()) {
		if strings.Contains(line, `"health is served"`) { // the last line belongs to the last start
			var said struct{ Address string }
			if err := json.Unmarshal([]byte(line), &said); err != nil {
				b.Fatal(err)
			}
			address = said.Address
		}
	}
	res, err := (&http.Client{Timeout: time.Minute}).Get("http://" + address + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.Fatal(err)
	}
	return samples(b, text)
}

// depth returns the number of sign-ins in the operator's queue.
func depth(b *testing.B, r *testenv.Env) (n float64) {
	b.Helper()
	for s, v := range scrape(b, r.Operator) {
		if strings.HasPrefix(s, "workqueue_depth{") {
			n += v
		}
	}
	return n
}

func stopOperator(b *testing.B, r *testenv.Env) {
	b.Helper()
	if err := r.Operator.Stop(time.Minute); err != nil {
		b.Fatal(err)
	}
	// The log continues over restarts, so the test truncates it to not find lines of the previous start.
	if err := os.Truncate(r.Operator.Log, 0); err != nil {
		b.Fatal(err)
	}
}

func startOperator(b *testing.B, ctx context.Context, r *testenv.Env) {
	b.Helper()
	if err := r.StartOperator(ctx); err != nil {
		b.Fatal(err)
	}
}

// settle waits until the operator has reconciled n sign-ins and its queue is empty.
func settle(b *testing.B, ctx context.Context, r *testenv.Env, n int) {
	b.Helper()
	for {
		looked, waiting, busy := 0.0, 0.0, 0.0
		for s, v := range scrape(b, r.Operator) {
			switch name, _, _ := strings.Cut(s, "{"); name {
			case "controller_runtime_reconcile_total":
				looked += v
			case "workqueue_depth":
				waiting += v
			case "controller_runtime_active_workers":
				busy += v
			}
		}
		if looked >= float64(n) && waiting+busy == 0 {
			return
		}
		select {
		case <-ctx.Done():
			b.Fatalf("after %v looks, %v wait: %v", looked, waiting, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// usage is the memory of a process, in bytes.
type usage struct{ resident, most, heap int64 }

func (u usage) String() string {
	return fmt.Sprintf("%d MB (at most %d MB; Go's heap in use %d MB)", u.resident>>20, u.most>>20, u.heap>>20)
}

func memory(b *testing.B, r *testenv.Env) map[string]usage {
	b.Helper()
	out := map[string]usage{}
	for role, p := range map[string]*testenv.Process{"access": r.Access, "operator": r.Operator} {
		var u usage
		u.heap = int64(scrape(b, p)["go_memstats_heap_inuse_bytes"])
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
		if err != nil {
			b.Skip("SKIP memory: this system has no /proc: ", err)
		}
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) == 3 && f[2] == "kB" {
				kb, err := strconv.ParseInt(f[1], 10, 64)
				if err != nil {
					b.Fatal(err)
				}
				switch f[0] {
				case "VmRSS:":
					u.resident = kb << 10
				case "VmHWM:":
					u.most = kb << 10
				}
			}
		}
		out[role] = u
	}
	return out
}
