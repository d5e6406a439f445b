//go:build unix

package controller

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/gossip"
)

// A profilesEnv is a place whose API server may have ClusterProfile.
type profilesEnv struct {
	*env
	objects dynamic.Interface // the admin's
	log     *recordingLog
	writes  *atomic.Int32 // requests of profilers, except reads
}

// A counting transport counts writes. The version of an object does not show a write that changes nothing, because the server does not
// store it.
type counting struct {
	http.RoundTripper
	writes *atomic.Int32
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		c.writes.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// install makes the API server serve one definition of testdata, or none. A definition takes a moment to appear and to disappear.
func (h *profilesEnv) install(file string, want servedKind) {
	h.t.Helper()
	crds := h.objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	f := h.profiler(noon, nil)
	if file == "" || file == "v1alpha2.yaml" { // objects stored as v1alpha1 would prevent that
		err := crds.Delete(h.t.Context(), "clusterprofiles."+profileGroup, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			h.t.Fatal(err)
		}
		h.until("the definition is gone", func() bool {
			_, err := crds.Get(h.t.Context(), "clusterprofiles."+profileGroup, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	if file != "" {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			h.t.Fatal(err)
		}
		if err := h.c.Apply(h.t.Context(), text); err != nil {
			h.t.Fatal(err)
		}
	}
	h.until("the schema is published", func() bool {
		got, err := discoverKind(h.t.Context(), f.schemas)
		if err != nil || got != want || file == "" {
			return err == nil && got == want
		}
		text, err := f.schemas.Get().AbsPath("/openapi/v3/apis/" + profileGroup + "/" + want.version).Do(h.t.Context()).Raw()
		return err == nil && strings.Contains(string(text), "As in "+file)
	})
}

// profiler returns a profiler that began at the given time.
func (h *profilesEnv) profiler(began time.Time, ca func(context.Context, Cluster) ([]byte, error)) *profileWriter {
	h.t.Helper()
	if ca == nil {
		ca = func(context.Context, Cluster) ([]byte, error) { return nil, errors.New("no request was made") }
	}
	config := rest.CopyConfig(h.config)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return counting{rt, h.writes} })
	f, err := newProfileWriter(config, &Profiles{Namespace: h.ns, ForgetAfter: time.Hour, CA: ca}, h.log.reports(), began)
	if err != nil {
		h.t.Fatal(err)
	}
	return f
}

// pass runs one pass and, if it fetched authorities, another one.
func (h *profilesEnv) pass(f *profileWriter, now time.Time, clusters ...Cluster) {
	h.t.Helper()
	for range 2 {
		if err := f.writeAll(h.t.Context(), now, sortedClusters(clusters)); err != nil {
			h.t.Fatal(err)
		}
		f.cas.fetching.Wait()
	}
}

func (h *profilesEnv) profiles(version string) dynamic.ResourceInterface {
	return h.objects.Resource(servedKind{version: version}.resource()).Namespace(h.ns)
}

// all returns the existing profiles by name.
func (h *profilesEnv) all(version string) map[string]*unstructured.Unstructured {
	h.t.Helper()
	list, err := h.profiles(version).List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	all := map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		all[list.Items[i].GetName()] = &list.Items[i]
	}
	return all
}

func (h *profilesEnv) clear(version string) {
	h.t.Helper()
	if err := h.profiles(version).DeleteCollection(h.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

func versions(all map[string]*unstructured.Unstructured) map[string]string {
	v := map[string]string{}
	for n, o := range all {
		v[n] = o.GetResourceVersion()
	}
	return v
}

// health returns status, reason and time of the condition.
func health(o *unstructured.Unstructured) (string, string, string) {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range entries(any(list)) {
		if c["type"] == "ControlPlaneHealthy" {
			return fmt.Sprint(c["status"]), fmt.Sprint(c["reason"]), fmt.Sprint(c["lastTransitionTime"])
		}
	}
	return "", "", ""
}

// DSC-14: on a real API server, with each schema that ClusterProfile ever had, by an account with the rights in the package comment.
func TestClusterProfiles(t *testing.T) {
	p := newEnv(t)
	objects, err := dynamic.NewForConfig(p.c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	h := &profilesEnv{env: p, objects: objects, log: new(recordingLog), writes: new(atomic.Int32)}
	defer h.install("", servedKind{})

	run := func(name string, f func(*profilesEnv)) {
		t.Run(name, func(t *testing.T) {
			p := *p
			p.t = t
			f(&profilesEnv{env: &p, objects: objects, log: new(recordingLog), writes: new(atomic.Int32)})
		})
	}
	h.install("", servedKind{})
	run("off", (*profilesEnv).off)
	for _, s := range []struct {
		file string
		servedKind
	}{
		{"v1alpha1-first.yaml", servedKind{"v1alpha1", false}},
		{"v1alpha1-config.yaml", servedKind{"v1alpha1", false}},
		{"v1alpha1-cluster.yaml", servedKind{"v1alpha1", false}},
		{"v1alpha1-access.yaml", servedKind{"v1alpha1", true}},
		{"both-old-stored.yaml", servedKind{"v1alpha2", true}},
		{"v1alpha2.yaml", servedKind{"v1alpha2", true}},
	} {
		h.install(s.file, s.servedKind)
		run(s.file, func(h *profilesEnv) { h.schema(s.servedKind, s.file == "both-old-stored.yaml") })
	}
	// These need one schema only: the last one.
	run("removed only after forgetAfter", (*profilesEnv).forgotten)
	run("a restart", (*profilesEnv).restart)
	run("authority", (*profilesEnv).authority)
	run("other people's objects", (*profilesEnv).others)
	run("edited", (*profilesEnv).edited)
	run("many", (*profilesEnv).many)
	run("no rights", (*profilesEnv).rights)
	run("the kind disappears", (*profilesEnv).away)
}

// Without the kind: one log line, no write and no error. When the kind appears, the profiler finds it.
func (h *profilesEnv) off() {
	t := h.t
	f := h.profiler(noon.Add(-time.Hour), nil)
	for i := range 5 {
		h.pass(f, noon.Add(time.Duration(i)*discoveryInterval), clusterNamed("east"))
	}
	switch {
	case h.log.count("ClusterProfiles are off") != 1:
		t.Errorf(`h.log.count("ClusterProfiles are off") != 1; %d, %s`, h.writes.Load(), h.log.String())
	case h.log.count("\n") != 1:
		t.Errorf(`h.log.count("\n") != 1; %d, %s`, h.writes.Load(), h.log.String())
	case h.writes.Load() != 0:
		t.Errorf("h.writes.Load() = %v, want 0; %s", h.writes.Load(), h.log.String())
	}
	h.install("v1alpha1-first.yaml", servedKind{"v1alpha1", false})
	defer h.clear("v1alpha1")
	h.pass(f, noon.Add(5*discoveryInterval), clusterNamed("east"))
	if len(h.all("v1alpha1")) != 1 || h.log.count("ClusterProfiles are written") != 1 {
		t.Error(h.log.String())
	}
}

// schema tests the life of a profile with one schema of the kind.
func (h *profilesEnv) schema(s servedKind, pruned bool) {
	t := h.t
	defer h.clear(s.version)
	ca, hash := authorityNamed(t, 1)
	f := h.profiler(noon.Add(-time.Hour), func(context.Context, Cluster) ([]byte, error) { return ca, nil })
	alive, suspect, dead, left, unknown := clusterNamed("prod-eu.alive"), clusterNamed("suspect"), clusterNamed("dead"), clusterNamed("left"), clusterNamed("unknown")
	suspect.State, dead.State, left.State, unknown.State = gossip.Suspect, gossip.Dead, gossip.Gone, gossip.Unknown
	alive.CAHash, alive.Self = hash, true
	alive.Labels = map[string]string{"env": "prod", "example.com/tier": "gold", "empty": "", strings.Repeat("a", 200) + ".example/" + strings.Repeat("b", 63): "too long"}
	unverified, conflict := clusterNamed("unverified"), clusterNamed("conflict")
	unverified.Verified, conflict.Conflict = false, true
	contested := alive
	contested.Name, contested.Conflict, contested.URL = "aaa-mallory", true, "https://mallory.ts.net"
	list := []Cluster{alive, suspect, dead, left, unknown, unverified, conflict, contested}
	h.pass(f, noon, list...)

	all := h.all(s.version)
	if len(all) != 5 {
		t.Fatalf("%d profiles: %v", len(all), slices.Sorted(maps.Keys(all)))
	}
	for _, tc := range []struct {
		Cluster
		status, reason string
	}{{alive, "True", "Alive"}, {suspect, "Unknown", "Suspect"}, {dead, "False", "Dead"}, {left, "Unknown", "Left"}, {unknown, "Unknown", "Unknown"}} {
		o := all[profileName(tc.Cluster)]
		if o == nil {
			t.Fatalf("no profile of %s among %v", tc.Name, slices.Sorted(maps.Keys(all)))
		}
		by, _, _ := unstructured.NestedString(o.Object, "spec", "clusterManager", "name")
		shown, _, _ := unstructured.NestedString(o.Object, "spec", "displayName")
		switch {
		case by != "tailplane":
			t.Errorf("by = %q, want %q", by, "tailplane")
		case shown != tc.Name:
			t.Errorf("shown = %q, want %q", shown, tc.Name)
		case o.GetLabels()["x-k8s.io/cluster-manager"] != "tailplane":
			t.Errorf(`o.GetLabels()["x-k8s.io/cluster-manager"] != "tailplane"; %s, %v`, tc.Name, o.Object)
		case o.GetAnnotations()[idAnnotation] != tc.ID:
			t.Errorf("o.GetAnnotations()[idAnnotation] != tc.ID; %s, %v", tc.Name, o.Object)
		}
		switch status, reason, since := health(o); {
		case status != tc.status:
			t.Errorf("status = %q, want %q; %s", status, tc.status, tc.Name)
		case reason != tc.reason:
			t.Errorf("reason = %q, want %q; %s", reason, tc.reason, tc.Name)
		case since != "2026-11-21T12:00:00Z":
			t.Errorf("since = %q, want %q; %s", since, "2026-11-21T12:00:00Z", tc.Name)
		}
	}
	name := profileName(alive)
	if !strings.HasPrefix(name, "prod-eu-alive-") {
		t.Errorf("it is called %s", name)
	}
	properties, _, _ := unstructured.NestedSlice(all[name].Object, "status", "properties")
	var labels []string
	for _, p := range entries(any(properties)) {
		labels = append(labels, fmt.Sprint(p["name"], "=", p["value"], "@", p["lastObservedTime"]))
	}
	if !slices.Equal(labels, []string{"env=prod@2026-11-21T12:00:00Z", "example.com/tier=gold@2026-11-21T12:00:00Z"}) {
		t.Errorf("properties: %v", labels)
	}
	provider := func(name string) any {
		list, _, _ := unstructured.NestedSlice(h.all(s.version)[name].Object, "status", "accessProviders")
		if len(list) == 0 {
			return nil
		}
		return list[0]
	}
	want := any(map[string]any{"name": "tailplane", "cluster": map[string]any{
		"server": alive.APIEndpoint, "certificate-authority-data": base64.StdEncoding.EncodeToString(ca),
	}})
	if !s.access || pruned {
		want = nil
	}
	if got := provider(name); !reflect.DeepEqual(got, want) {
		t.Errorf("access provider: %v", got)
	}
	if old, ok, _ := unstructured.NestedFieldNoCopy(all[name].Object, "status", "credentialProviders"); ok {
		t.Errorf("credentialProviders: %v", old)
	}
	if got := provider(profileName(suspect)); got != nil {
		t.Errorf("a provider without an authority: %v", got)
	}

	// An unchanged profile is not written again.
	before := h.writes.Load()
	later := slices.Clone(list)
	later[0].LastSeen = noon.Add(time.Minute)
	h.pass(f, noon.Add(time.Minute), later...)
	other := h.profiler(noon.Add(-time.Hour), func(context.Context, Cluster) ([]byte, error) { return ca, nil })
	if !pruned { // a new leader cannot know which fields the server drops
		h.pass(other, noon.Add(time.Minute), later...)
	}
	if n := h.writes.Load() - before; n != 0 {
		t.Errorf("%d writes of what is there already", n)
	}

	// Health, labels, name and address follow the cluster; the object stays.
	later[0].State, later[0].Name, later[0].Labels, later[0].APIEndpoint = gossip.Suspect, "renamed", map[string]string{"env": "test"}, "https://moved.example:443"
	h.pass(f, noon.Add(2*time.Minute), later...)
	o := h.all(s.version)[name]
	shown, _, _ := unstructured.NestedString(o.Object, "spec", "displayName")
	properties, _, _ = unstructured.NestedSlice(o.Object, "status", "properties")
	switch status, reason, since := health(o); {
	case status != "Unknown":
		t.Errorf("status = %q, want %q", status, "Unknown")
	case reason != "Suspect":
		t.Errorf("reason = %q, want %q", reason, "Suspect")
	case since != "2026-11-21T12:02:00Z":
		t.Errorf("since = %q, want %q", since, "2026-11-21T12:02:00Z")
	case shown != "renamed":
		t.Errorf("shown = %q, want %q", shown, "renamed")
	case len(properties) != 1:
		t.Errorf("len(properties) = %v, want 1", len(properties))
	case entries(any(properties))[0]["value"] != "test":
		t.Errorf(`entries(any(properties))[0]["value"] != "test"; status = %s, reason = %s, since = %s, shown = %s, properties = %v`,
			status, reason, since, shown, properties)
	case len(h.all(s.version)) != 5:
		t.Errorf("len(h.all(s.version)) != 5; status = %s, reason = %s, since = %s, shown = %s, properties = %v",
			status, reason, since, shown, properties)
	}
	if p, ok := provider(name).(map[string]any); s.access && !pruned && (!ok || p["cluster"].(map[string]any)["server"] != "https://moved.example:443") {
		t.Errorf("access provider: %v", p)
	}
	later[0].State = gossip.Dead
	h.pass(f, noon.Add(3*time.Minute), later...)
	if status, _, since := health(h.all(s.version)[name]); status != "False" || since != "2026-11-21T12:03:00Z" {
		t.Errorf("dead: %s since %s", status, since)
	}
	later[0].State = gossip.Alive
	h.pass(f, noon.Add(4*time.Minute), later...)
	if status, _, since := health(h.all(s.version)[name]); status != "True" || since != "2026-11-21T12:04:00Z" {
		t.Errorf("back: %s since %s", status, since)
	}

	// The cluster is no longer verified, so the profile must not lead anyone there.
	later[0].Verified = false
	h.pass(f, noon.Add(5*time.Minute), later...)
	switch status, reason, _ := health(h.all(s.version)[name]); {
	case status != "Unknown":
		t.Errorf("unverified: status = %q, want %q", status, "Unknown")
	case reason != "NotVerified":
		t.Errorf("unverified: reason = %q, want %q", reason, "NotVerified")
	case provider(name) != nil:
		t.Errorf("unverified: provider(name) is not nil; status = %s, reason = %s, %v", status, reason, provider(name))
	}
	if h.log.count("level=WARN") > 0 {
		t.Error(h.log.String())
	}
}

const best = "v1alpha2"

// A profile is deleted when its cluster has been gone for forgetAfter, either dead, left or not listed. It is not deleted earlier, and not
// if the cluster came back meanwhile.
func (h *profilesEnv) forgotten() {
	t := h.t
	defer h.clear(best)
	f := h.profiler(noon, nil)
	own, dead, left, lost, back := clusterNamed("own"), clusterNamed("dead"), clusterNamed("left"), clusterNamed("lost"), clusterNamed("back")
	h.pass(f, noon, own, dead, left, lost, back)
	// Just after the start, a missing cluster may not have been met yet.
	h.pass(f, noon.Add(settleTime-time.Second), own, dead, left, back)
	if status, reason, _ := health(h.all(best)[profileName(lost)]); reason != "Alive" {
		t.Errorf("too early: %s because %s", status, reason)
	}
	own.LastSeen = noon.Add(2 * time.Minute)
	dead.State, dead.LastSeen = gossip.Dead, noon.Add(time.Minute)
	left.State, left.LastSeen = gossip.Gone, noon.Add(90*time.Second)
	h.pass(f, noon.Add(2*time.Minute), own, dead, left)
	for c, want := range map[string]string{
		profileName(dead): "Dead 2026-11-21T12:01:00Z", profileName(left): "Left 2026-11-21T12:01:30Z",
		profileName(lost): "NotListed 2026-11-21T12:02:00Z", profileName(back): "NotListed 2026-11-21T12:02:00Z", profileName(own): "Alive ",
	} {
		o := h.all(best)[c]
		if _, reason, _ := health(o); reason+" "+o.GetAnnotations()[goneAnnotation] != want {
			t.Errorf("%s: %s since %q", c, reason, o.GetAnnotations()[goneAnnotation])
		}
	}
	h.pass(f, noon.Add(10*time.Minute), own, dead, left, back)
	if since := h.all(best)[profileName(back)].GetAnnotations()[goneAnnotation]; since != "" {
		t.Errorf("it is back, and gone since %s", since)
	}
	doubt := dead // this server hears no other: that is no sign of life
	doubt.State = gossip.Unknown
	h.pass(f, noon.Add(11*time.Minute), own, doubt, left, back)
	if _, reason, _ := health(h.all(best)[profileName(dead)]); reason != "Unknown" || h.all(best)[profileName(dead)].GetAnnotations()[goneAnnotation] != "2026-11-21T12:01:00Z" {
		t.Errorf("a dead one that is unknown: %s, %v", reason, h.all(best)[profileName(dead)].GetAnnotations())
	}
	there := func() (names []string) {
		for _, o := range h.all(best) {
			shown, _, _ := unstructured.NestedString(o.Object, "spec", "displayName")
			names = append(names, shown)
		}
		slices.Sort(names)
		return names
	}
	for _, tc := range []struct {
		after time.Duration // since dead was last seen
		want  string
	}{
		{time.Hour, "[back dead left lost own]"},
		{time.Hour + 2*time.Second, "[back left lost own]"},
		{time.Hour + 30*time.Second, "[back left lost own]"},
		{time.Hour + 32*time.Second, "[back lost own]"},
		{time.Hour + 60*time.Second, "[back lost own]"},
		{time.Hour + 62*time.Second, "[back own]"},
		{24 * time.Hour, "[back own]"},
	} {
		h.pass(f, noon.Add(time.Minute+tc.after), own, dead, left, back)
		if got := fmt.Sprint(there()); got != tc.want {
			t.Errorf("after %v: %s", tc.after, got)
		}
	}
}

// A new leader continues what the previous one began. It neither forgets nor restarts the count, and does not treat a cluster that it has
// not met yet as gone.
func (h *profilesEnv) restart() {
	t := h.t
	defer h.clear(best)
	own, lost, quiet := clusterNamed("own"), clusterNamed("lost"), clusterNamed("quiet")
	h.pass(h.profiler(noon.Add(-time.Hour), nil), noon, own, lost, quiet)
	h.pass(h.profiler(noon.Add(-time.Hour), nil), noon.Add(time.Second), own, quiet) // lost is missing

	f := h.profiler(noon.Add(30*time.Minute), nil)
	h.pass(f, noon.Add(30*time.Minute), own)
	if _, reason, _ := health(h.all(best)[profileName(quiet)]); reason != "Alive" || len(h.all(best)) != 3 {
		t.Errorf("quiet: %s", reason)
	}
	// A tampered time in the future, or no time, is no reason to delete.
	quiet.State = gossip.Unknown
	h.pass(f, noon.Add(59*time.Minute), own, quiet)
	if len(h.all(best)) != 3 {
		t.Error("lost is gone too early")
	}
	h.pass(h.profiler(noon.Add(time.Hour), nil), noon.Add(time.Hour+3*time.Second), own, quiet)
	if all := h.all(best); len(all) != 2 || all[profileName(lost)] != nil {
		t.Errorf("lost is not gone: %v", slices.Sorted(maps.Keys(all)))
	}
	for _, since := range []string{"2030-01-01T00:00:00Z", "yesterday", "0001-01-01T00:00:00Z0"} {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, goneAnnotation, since)
		if _, err := h.profiles(best).Patch(t.Context(), profileName(quiet), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		h.pass(h.profiler(noon.Add(-time.Hour), nil), noon.Add(2*time.Hour), own)
		if o := h.all(best)[profileName(quiet)]; o == nil || o.GetAnnotations()[goneAnnotation] != "2026-11-21T14:00:00Z" {
			t.Errorf("since %s: %v", since, o)
		}
	}
}

// An authority is published only if it matches the hash in the record. It is fetched once, and again a minute after a failure. Text around
// the certificates is not published.
func (h *profilesEnv) authority() {
	t := h.t
	defer h.clear(best)
	good, hash := authorityNamed(t, 1)
	wrong, wrongHash := authorityNamed(t, 2)
	var mu sync.Mutex
	fetched, answer := 0, wrong
	set := func(b []byte) { mu.Lock(); defer mu.Unlock(); answer = b }
	questions := func() int { mu.Lock(); defer mu.Unlock(); return fetched }
	ca := func(context.Context, Cluster) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		if fetched++; answer == nil {
			return nil, errors.New("no answer")
		}
		return answer, nil
	}
	f := h.profiler(noon.Add(-time.Hour), ca)
	east := clusterNamed("east")
	east.CAHash = hash
	published := func() []byte { t.Helper(); return caIn(h.all(best)[profileName(east)]) }
	now := noon
	for i, bad := range [][]byte{
		wrong, nil, []byte("no certificate"), append(slices.Clone(good), wrong...), slices.Repeat(good, 200),
		append(slices.Clone(good), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"...),
	} {
		set(bad)
		h.pass(f, now, east)
		h.pass(f, now.Add(caRetryAfter-time.Second), east)
		if published() != nil || questions() != i+1 {
			t.Errorf("answer %d: published %s after %d questions", i, published(), questions())
		}
		now = now.Add(caRetryAfter)
	}
	if h.log.count("the record has "+hash) < 1 || h.log.count(wrongHash) < 1 {
		t.Error(h.log.String())
	}
	n := questions()
	set(append([]byte("a word beside it\n"), good...))
	h.pass(f, now, east)
	if string(published()) != string(good) {
		t.Errorf("published: %s", published())
	}
	// The next leader reads it from the profile.
	again := h.profiler(noon.Add(-time.Hour), ca)
	h.pass(again, now.Add(time.Second), east)
	if questions() != n+1 || string(published()) != string(good) {
		t.Errorf("%d requests", questions()-n)
	}
	// Dead clusters are not queried, and their authority stays.
	east.State = gossip.Dead
	h.pass(again, now.Add(2*time.Second), east)
	if questions() != n+1 || string(published()) != string(good) {
		t.Error("a dead server was contacted or its CA certificates were removed")
	}
	// With another hash, the old authority is removed at once, before the new one is known.
	east.State, east.CAHash = gossip.Alive, wrongHash
	h.pass(again, now.Add(3*time.Second), east)
	if published() != nil {
		t.Error("outdated CA certificates are published")
	}
	// Without a hash, no authority can be verified.
	n = questions()
	east.CAHash = ""
	h.pass(again, now.Add(time.Hour), east)
	if published() != nil || questions() != n {
		t.Error("published without a hash")
	}
}

// Objects that Tailplane did not create are neither changed nor deleted, whatever their name and label are.
func (h *profilesEnv) others() {
	t := h.t
	defer h.clear(best)
	taken, also := clusterNamed("taken"), clusterNamed("also")
	foreign := func(name, by string, labels, notes map[string]string) {
		t.Helper()
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"clusterManager": map[string]any{"name": by}, "displayName": "theirs"}}}
		o.SetAPIVersion(profileGroup + "/" + best)
		o.SetKind("ClusterProfile")
		o.SetName(name)
		o.SetLabels(labels)
		o.SetAnnotations(notes)
		if _, err := h.profiles(best).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ours := map[string]string{managerLabel: manager}
	id := func(c Cluster) map[string]string {
		return map[string]string{idAnnotation: c.ID, goneAnnotation: "2020-01-01T00:00:00Z"}
	}
	foreign(profileName(taken), "fleet", map[string]string{managerLabel: "fleet"}, id(taken))
	foreign(profileName(also), manager, nil, id(also))                                  // without the label
	foreign("gone"+profileSuffix("gone"), manager, nil, id(Cluster{ID: "gone"}))        // the same, for a cluster that is not listed
	foreign("mine"+profileSuffix("mine"), "fleet", ours, id(Cluster{ID: "mine"}))       // of another manager
	foreign("hand-made", manager, ours, nil)                                            // of no cluster
	foreign("a-copy", manager, ours, id(Cluster{ID: "copied"}))                         // under another name
	foreign("plain", "fleet", map[string]string{"app": "x"}, nil)                       // unrelated to Tailplane
	foreign(profileName(clusterNamed("lost")), manager, ours, id(clusterNamed("lost"))) // in the form of our profiles
	before := versions(h.all(best))
	f := h.profiler(noon.Add(-time.Hour), nil)
	var errorLog string
	for i := range 3 {
		err := f.writeAll(t.Context(), noon.Add(time.Duration(i)*blockTime), sortedClusters([]Cluster{clusterNamed("own"), taken, also}))
		if !errors.Is(err, errNameTaken) || !strings.Contains(err.Error(), "2 ClusterProfiles in") {
			t.Errorf("pass %d: %v", i, err)
		} else if errorLog != "" && err.Error() != errorLog {
			t.Errorf("one trouble in other words: %v", err)
		} else {
			errorLog = err.Error()
		}
	}
	after := versions(h.all(best))
	if after[profileName(clusterNamed("own"))] == "" {
		t.Error("a taken name prevents other writes")
	}
	delete(after, profileName(clusterNamed("own")))
	delete(before, profileName(clusterNamed("lost"))) // this one was ours, and its cluster is long gone
	if !maps.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
	// The name becomes free.
	if err := h.profiles(best).Delete(t.Context(), profileName(taken), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_ = f.writeAll(t.Context(), noon.Add(3*blockTime), sortedClusters([]Cluster{clusterNamed("own"), taken, also}))
	if o := h.all(best)[profileName(taken)]; o == nil || managedClusterID(o) != taken.ID {
		t.Error("the name is free and not used")
	}
}

// Changes by other clients to our fields are reverted; their additions stay.
func (h *profilesEnv) edited() {
	t := h.t
	defer h.clear(best)
	east, west := clusterNamed("east"), clusterNamed("west")
	f := h.profiler(noon.Add(-time.Hour), nil)
	h.pass(f, noon, east, west)
	name := profileName(east)
	patch := func(text string, sub ...string) {
		t.Helper()
		if _, err := h.profiles(best).Patch(t.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{}, sub...); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"metadata":{"labels":{"team":"a"}},"spec":{"displayName":"nonsense"}}`)
	patch(`{"status":{"version":{"kubernetes":"v1.37.0"},"conditions":[
		{"type":"Joined","status":"True","reason":"Yes","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"},
		{"type":"ControlPlaneHealthy","status":"False","reason":"No","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}],
		"accessProviders":[{"name":"other","cluster":{"server":"https://other.example"}},{"name":"tailplane","cluster":{"server":"https://evil.example"}}]}}`, "status")
	if err := h.profiles(best).Delete(t.Context(), profileName(west), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.pass(f, noon.Add(listInterval), east, west)
	o := h.all(best)[name]
	shown, _, _ := unstructured.NestedString(o.Object, "spec", "displayName")
	version, _, _ := unstructured.NestedString(o.Object, "status", "version", "kubernetes")
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	providers, _, _ := unstructured.NestedSlice(o.Object, "status", "accessProviders")
	status, _, _ := health(o)
	switch {
	case shown != "east":
		t.Errorf("after an edit: shown = %q, want %q", shown, "east")
	case o.GetLabels()["team"] != "a":
		t.Errorf(`after an edit: o.GetLabels()["team"] != "a"; %v`, o.Object)
	case version != "v1.37.0":
		t.Errorf("after an edit: version = %q, want %q", version, "v1.37.0")
	case len(conditions) != 2:
		t.Errorf("after an edit: len(conditions) = %v, want 2", len(conditions))
	case status != "True":
		t.Errorf("after an edit: status = %q, want %q", status, "True")
	case len(providers) != 1:
		t.Errorf("after an edit: len(providers) = %v, want 1", len(providers))
	case entries(any(providers))[0]["name"] != "other":
		t.Errorf(`after an edit: entries(any(providers))[0]["name"] != "other"; %v`, o.Object)
	}
	if h.all(best)[profileName(west)] == nil {
		t.Error("a deleted profile is not created again")
	}
	// An unseen edit is not overwritten; the next pass reads it.
	patch(`{"metadata":{"labels":{"team":"b"}}}`)
	east.Name = "orient"
	h.pass(f, noon.Add(listInterval+time.Second), east, west)
	o = h.all(best)[name]
	if shown, _, _ := unstructured.NestedString(o.Object, "spec", "displayName"); shown != "orient" || o.GetLabels()["team"] != "b" {
		t.Errorf("after a second edit: %v", o.Object)
	}
	if h.log.count("level=WARN") > 0 {
		t.Error(h.log.String())
	}
}

// A pass has a limit, so many clusters need several passes.
func (h *profilesEnv) many() {
	t := h.t
	defer h.clear(best)
	var list []Cluster
	for i := range maxWritesPerPass {
		list = append(list, clusterNamed(fmt.Sprintf("c%03d", i)))
	}
	f := h.profiler(noon.Add(-time.Hour), nil)
	var counts []int
	for range 3 {
		if err := f.writeAll(t.Context(), noon, sortedClusters(list)); err != nil {
			t.Fatal(err)
		}
		counts = append(counts, len(h.all(best)))
	}
	if !slices.Equal(counts, []int{maxWritesPerPass / 2, maxWritesPerPass, maxWritesPerPass}) {
		t.Errorf("profiles after each pass: %v", counts)
	}
}

// Without a right, the error names it.
func (h *profilesEnv) rights() {
	t := h.t
	f := h.profiler(noon.Add(-time.Hour), nil)
	f.Profiles.Namespace = "default"
	if err := f.writeAll(t.Context(), noon, sortedClusters([]Cluster{clusterNamed("east")})); err == nil || !strings.Contains(err.Error(), "needs list, create, update and delete") {
		t.Errorf("%v", err)
	}
	stranger := &rest.Config{Host: h.config.Host, TLSClientConfig: h.config.TLSClientConfig}
	f, err := newProfileWriter(stranger, f.Profiles, h.log.reports(), noon)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.writeAll(t.Context(), noon, sortedClusters([]Cluster{clusterNamed("east")})); err == nil || !strings.Contains(err.Error(), "schema") {
		t.Errorf("%v", err)
	}
}

// If the kind is removed during a write, the failure is not permanent.
func (h *profilesEnv) away() {
	t := h.t
	f := h.profiler(noon.Add(-time.Hour), nil)
	h.pass(f, noon, clusterNamed("east"))
	h.install("", servedKind{})
	_ = f.writeAll(t.Context(), noon.Add(listInterval), sortedClusters([]Cluster{clusterNamed("east")})) // it may fail once
	h.pass(f, noon.Add(listInterval+publishEvery), clusterNamed("east"))
	if h.log.count("ClusterProfiles are off") != 1 {
		t.Error(h.log.String())
	}
}
