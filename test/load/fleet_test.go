package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const (
	fleetNamespace = "tailplane-fleet"
	fleetAccount   = "system:serviceaccount:" + fleetNamespace + ":tailplane-fleet"
	runners        = "tailplane-runners"
	fleetSettings  = "fleet:\n  clusterCIDRs: [10.96.0.0/12]\n  apiServers: [\"10.96.0.1:443\"]\n  images: {runner: registry.invalid/runner:1, manager: registry.invalid/manager:1, job: registry.invalid/job:1}\nhealth: 127.0.0.1:0\n"
	fleetAudit     = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata, users: [\"" + fleetAccount + "\"]}\n- {level: None}\n"
)

// A fleetEnv is the fleet's program with its rights and many organisations, a fake GitHub and a fake ARC.
type fleetEnv struct {
	b      *testing.B
	admin  client.Client
	github *forgetest.GitHubFake
	fleet  *testenv.Process
	asked  string // the API server's audit log of the fleet's requests
	orgs   []string
	pools  []string
}

// newDepot enrolls orgs organisations in pools pools each, and waits until all of them are served. It also returns
// the time that this took.
func newDepot(b *testing.B, ctx context.Context, orgs, pools int) (d *fleetEnv, took time.Duration) {
	b.Helper()
	dir, err := os.MkdirTemp("", "fleet")
	must(b, err)
	b.Cleanup(func() { os.RemoveAll(dir) })
	d = &fleetEnv{b: b, asked: filepath.Join(dir, "kube-audit.jsonl")}
	policy := filepath.Join(dir, "kube-audit.yaml")
	must(b, os.WriteFile(policy, []byte(fleetAudit), 0o600))
	c, err := kubetest.Run(ctx, kubetest.Options{Name: "depot", Args: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + d.asked, "--audit-log-maxsize=100000"}})
	must(b, err)
	b.Cleanup(func() { must(b, c.Close()) })
	scheme := runtime.NewScheme()
	must(b, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	d.admin, err = client.New(c.AdminConfig(), client.Options{Scheme: scheme})
	must(b, err)
	d.github = forgetest.NewGitHub(b)
	arctest.Start(b, arctest.Options{Cluster: c, Namespace: "arc-systems", Version: "0.14.2", GitHub: arctest.At(d.github, nil)})
	must(b, (&testenv.Env{Cluster: c}).FleetManifests(ctx))
	must(b, d.admin.Create(ctx, &v1alpha1.RunnerForge{ObjectMeta: metav1.ObjectMeta{Name: "github"}, Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: d.github.URL}}))
	var uses []v1alpha1.EnrolledPool
	for i := range pools {
		name := fmt.Sprintf("nix-%02d", i)
		d.pools, uses = append(d.pools, name), append(uses, v1alpha1.EnrolledPool{Name: name, Type: v1alpha1.UseShared})
		must(b, d.admin.Create(ctx, &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.RunnerPoolSpec{Forge: "github", RunsOn: []string{"self-hosted", name}, Scaling: v1alpha1.PoolScaling{Max: 3, Budget: int32(3 * orgs)}}}))
	}
	for i := range orgs {
		org := fmt.Sprintf("org-%03d", i)
		d.orgs = append(d.orgs, org)
		d.github.AddAccount(org, "")
	}
	must(b, inParallel(orgs, 8, func(i int) error {
		org := d.orgs[i]
		return errors.Join(
			d.admin.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: org, Labels: map[string]string{v1alpha1.OrgLabel: org}}, StringData: map[string]string{"github_token": d.github.AddToken("admin:org", "repo")}}),
			d.admin.Create(ctx, &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}, Spec: v1alpha1.RunnerEnrollmentSpec{Forge: "github", ConfigURL: d.github.URL + "/" + org, Isolation: v1alpha1.IsolationNone,
				Pools: uses, Credentials: v1alpha1.EnrollmentCredentials{SecretName: org}}}))
	}))
	began := time.Now()
	d.fleet, err = testenv.StartFleet(ctx, filepath.Join(dir, "fleet"), c, fleetNamespace, "tailplane-fleet", fleetSettings, "--leader-elect=false")
	must(b, err)
	b.Cleanup(func() {
		if b.Failed() {
			out := d.fleet.Output()
			b.Logf("the end of the fleet's log:\n%s", out[max(0, len(out)-4000):])
		}
		d.fleet.Kill()
	})
	for next := time.Now(); d.served(ctx) < orgs; <-time.After(500 * time.Millisecond) {
		if ctx.Err() != nil {
			b.Fatalf("%d of %d are served", d.served(context.WithoutCancel(ctx)), orgs)
		}
		if time.Now().After(next) {
			b.Logf("%v: %d of %d are served", time.Since(began).Round(time.Second), d.served(ctx), orgs)
			next = time.Now().Add(30 * time.Second)
		}
	}
	return d, time.Since(began)
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// served returns the number of enrollments whose pools are all open.
func (d *fleetEnv) served(ctx context.Context) (n int) {
	var all v1alpha1.RunnerEnrollmentList
	if err := d.admin.List(ctx, &all); err != nil {
		return 0
	}
	for _, e := range all.Items {
		open := 0
		for _, p := range e.Status.Pools {
			if p.EffectiveMax != nil && *p.EffectiveMax > 0 && p.ScaleSetID != nil {
				open++
			}
		}
		if e.Status.Phase == v1alpha1.PhaseActive && open == len(d.pools) {
			n++
		}
	}
	return n
}

// found returns the number of enrollments with a finding, or with one a moment ago.
func (d *fleetEnv) found(ctx context.Context) (n int) {
	var all v1alpha1.RunnerEnrollmentList
	must(d.b, d.admin.List(ctx, &all))
	for _, e := range all.Items {
		if len(e.Status.Findings) > 0 {
			n++
		}
	}
	return n
}

// maxOf returns the maximum number of runners of a scale set.
func (d *fleetEnv) maxOf(ctx context.Context, org, pool string) int64 {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "actions.github.com", Version: "v1alpha1", Kind: "AutoscalingRunnerSet"})
	must(d.b, d.admin.Get(ctx, client.ObjectKey{Namespace: runners, Name: org + "-" + pool}, u))
	n, _, _ := unstructured.NestedInt64(u.Object, "spec", "maxRunners")
	return n
}

// A requestCount counts the fleet's requests to the API server.
type requestCount struct {
	reads, writes int
	of            map[string]int
}

// since counts the requests from an offset of the API server's log on. It also returns the log's current end.
func (d *fleetEnv) since(from int64) (t requestCount, end int64) {
	d.b.Helper()
	t.of = map[string]int{}
	f, err := os.Open(d.asked)
	must(d.b, err)
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size < from {
		d.b.Fatalf("the API server's log was restarted (%d bytes, %d were read before: %v): requests cannot be counted", size, from, err)
	}
	_, err = f.Seek(from, io.SeekStart)
	must(d.b, err)
	end = from
	for r := bufio.NewReaderSize(f, 1<<20); ; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return t, end
		}
		end += int64(len(line))
		var k struct {
			Stage, Verb string
			ObjectRef   struct{ Resource, Subresource string }
		}
		if json.Unmarshal(line, &k) != nil || k.Verb == "watch" || k.Stage != "ResponseComplete" || strings.HasSuffix(k.ObjectRef.Resource, "reviews") {
			continue
		}
		t.of[strings.TrimSuffix(k.Verb+" "+k.ObjectRef.Resource+"/"+k.ObjectRef.Subresource, "/")]++
		if k.Verb == "get" || k.Verb == "list" {
			t.reads++
		} else {
			t.writes++
		}
	}
}

// memory returns, in MB, the current memory of the process, its peak, and the part of the current memory that is
// mapped from the program file. The kernel can drop that part.
func (d *fleetEnv) memory() (now, most, file float64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.fleet.PID()))
	if err != nil {
		d.b.Skip("SKIP memory: this system has no /proc: ", err)
	}
	for line := range strings.Lines(string(status)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			now = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kb); n == 1 {
			most = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "RssFile: %f kB", &kb); n == 1 {
			file = kb / 1024
		}
	}
	return now, most, file
}

func loadNow() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

// depotSize returns the number of enrollments and of pools for each. FLEET=500x5 selects a larger size than the
// default, which takes a few minutes.
func depotSize(b *testing.B) (orgs, pools int) {
	orgs, pools = 100, 5
	if s := os.Getenv("FLEET"); s != "" {
		if n, err := fmt.Sscanf(s, "%dx%d", &orgs, &pools); n != 2 {
			b.Fatalf("FLEET=%s is not like 500x5: %v", s, err)
		}
	}
	return orgs, pools
}

// BenchmarkFleetMany measures FLEET-20: the fleet's memory with many enrollments, and its requests to the API server
// and the forge while nothing changes. It also checks that the fleet then writes nothing, and measures how soon it
// carries out one change.
func BenchmarkFleetMany(b *testing.B) {
	if b.N > 1 {
		return // an earlier round has measured it
	}
	ctx, cancel := context.WithTimeout(b.Context(), 50*time.Minute)
	defer cancel()
	orgs, pools := depotSize(b)
	d, took := newDepot(b, ctx, orgs, pools)
	all, at := d.since(0)
	b.Logf("%d enrollments with %d pools each: all served %v after the start, by %d reads and %d writes (load %s)", orgs, pools, took.Round(time.Second), all.reads, all.writes, loadNow())

	// The fleet is quiet after half a minute without a write and without any finding, or after twelve minutes. A
	// comparison that ran before ARC created its last listener is repeated five minutes later, and the fleet then
	// writes the corrected status.
	settled := time.Now()
	for {
		<-time.After(30 * time.Second)
		t, end := d.since(at)
		at = end
		found := d.found(ctx)
		if t.writes+found == 0 || time.Since(settled) > 12*time.Minute {
			break
		}
		b.Logf("still written: %d times, and %d have findings", t.writes, found)
	}
	const still = 2 * time.Minute
	asked := len(d.github.Calls())
	<-time.After(still)
	quiet, end := d.since(at)
	at = end
	minutes := still.Minutes()
	forge := float64(len(d.github.Calls())-asked) / minutes / float64(orgs)
	now, most, file := d.memory()
	b.Logf("nothing happens for %v: %d writes, %d reads %v, memory %.0f MB, of which %.0f MB are the program's file, at most %.0f MB (load %s)", still, quiet.writes, quiet.reads, quiet.of, now, file, most, loadNow())
	budgetCount("fleet-steady-writes", quiet.writes, 0)
	budgetMost("fleet-forge-requests-per-org-and-minute", forge, 1)
	budgetMost("fleet-memory-MB", most, 200)
	b.Logf("reads of the API server for each enrollment and minute: %.1f", float64(quiet.reads)/minutes/float64(orgs))

	// One change: an organisation's share of one pool.
	var took1 []time.Duration
	for i := range 20 {
		org := d.orgs[i*orgs/20]
		e := &v1alpha1.RunnerEnrollment{}
		must(b, d.admin.Get(ctx, client.ObjectKey{Name: org}, e))
		e.Spec.Pools[0].Max = new(int32(1))
		began := time.Now()
		must(b, d.admin.Update(ctx, e))
		for d.maxOf(ctx, org, d.pools[0]) != 1 {
			must(b, ctx.Err())
			<-time.After(5 * time.Millisecond)
		}
		took1 = append(took1, time.Since(began))
	}
	_, q := spread(took1)
	change, _ := d.since(at)
	b.Logf("one change: p50 %v, worst %v, %.1f reads and %.1f writes for each (load %s): %v", q(.5), q(1), float64(change.reads)/20, float64(change.writes)/20, loadNow(), change.of)
	budget("fleet-one-change-p50", q(.5), time.Second)
	budget("fleet-one-change-worst", q(1), time.Second)
}

// BenchmarkFleetFreeze measures FLEET-05. The time starts at the single write of a hold of everything. It ends when
// 99 of 100 workloads provably take no more jobs, and again at the last one. There are 50 workloads, of ten
// organisations.
func BenchmarkFleetFreeze(b *testing.B) {
	if b.N > 1 {
		return // an earlier round has measured it
	}
	ctx, cancel := context.WithTimeout(b.Context(), 15*time.Minute)
	defer cancel()
	const orgs, pools, rounds = 10, 5, 5
	d, _ := newDepot(b, ctx, orgs, pools)
	var nearly, whole, lifted []time.Duration
	for i := range rounds {
		h := &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("freeze-", i)}, Spec: v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{All: true}, Mode: v1alpha1.HoldPause, Reason: "a measurement", RequestedBy: d.who(ctx)}}
		began := time.Now()
		must(b, d.admin.Create(ctx, h))
		var most time.Duration
		for !meta.IsStatusConditionTrue(h.Status.Conditions, "Applied") {
			if h.Status.Targets == orgs*pools && int(h.Status.Applied)*100 >= orgs*pools*99 && most == 0 {
				most = time.Since(began)
			}
			<-time.After(10 * time.Millisecond)
			must(b, d.admin.Get(ctx, client.ObjectKeyFromObject(h), h))
		}
		whole = append(whole, time.Since(began))
		if most == 0 {
			most = time.Since(began)
		}
		nearly = append(nearly, most)
		for _, org := range d.orgs {
			for _, pool := range d.pools {
				if n := d.maxOf(ctx, org, pool); n != 0 {
					b.Fatalf("%s of %s is called held, and may have %d", pool, org, n)
				}
			}
		}
		began = time.Now()
		must(b, d.admin.Delete(ctx, h))
		for d.served(ctx) < orgs {
			must(b, ctx.Err())
			<-time.After(20 * time.Millisecond)
		}
		lifted = append(lifted, time.Since(began))
	}
	_, n := spread(nearly)
	_, w := spread(whole)
	_, l := spread(lifted)
	b.Logf("%d workloads of %d organisations, %d times (load %s): 99 %% confirmed %v, worst %v; all %v, worst %v; after the end of it all open again %v, worst %v", orgs*pools, orgs, rounds, loadNow(), n(.5), n(1), w(.5), w(1), l(.5), l(1))
	budget("fleet-freeze-50-pools-99-percent-worst", n(1), 10*time.Second)
	budget("fleet-freeze-50-pools-all-worst", w(1), 10*time.Second)
}

// who returns the administrator's user name. A hold must name its author.
func (d *fleetEnv) who(ctx context.Context) string {
	d.b.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1", Kind: "SelfSubjectReview"})
	must(d.b, d.admin.Create(ctx, u))
	name, _, _ := unstructured.NestedString(u.Object, "status", "userInfo", "username")
	return name
}
