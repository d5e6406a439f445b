package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// Sizes of the merged collections.
const (
	mergedPods   = 10_000 // for each member
	floodEvents  = 20_000 // for each member
	pacedEvents  = 500    // for each member, 10 ms apart
	idleWatches  = 500
	idleEvents   = 20 // from each member to each watch, followed by silence
	probedOwners = 60
)

// aPod returns the JSON of a pod of about 3 kB.
func aPod(name string, rv int) string {
	container := `{"name":"c","image":"registry.example/image:v1","env":[{"name":"A","value":"b"}],"volumeMounts":[{"name":"kube-api-access","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}]}`
	return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":"shop","uid":"5d0f2c1e-0000-4000-8000-%012d","resourceVersion":"%d","labels":{"app":"a"},"annotations":{"note":%q}},"spec":{"containers":[%s,%s,%s]},"status":{"phase":"Running"}}`,
		name, rv, rv, strings.Repeat("n", 2000), container, container, container)
}

// A memberFake is one member: a cluster with many pods in the namespace shop. The label selector of a request selects its
// behaviour.
type memberFake struct {
	name  string
	pods  []byte        // the list of all pods
	delay time.Duration // of each answer for one object
}

func newStock(name string, delay time.Duration) *memberFake {
	var b bytes.Buffer
	b.WriteString(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"20000"},"items":[`)
	for i := range mergedPods {
		if i > 0 {
			b.WriteByte(',')
		}
		// As in an API server's answer, the items of a list have no kind.
		b.WriteString(strings.Replace(aPod(fmt.Sprintf("%s-%05d", name, i), 1+i), `"kind":"Pod","apiVersion":"v1",`, "", 1))
	}
	b.WriteString("]}\n")
	return &memberFake{name, b.Bytes(), delay}
}

// ServeHTTP implements [http.Handler].
func (c *memberFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	name, single := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/shop/pods/")
	switch {
	case single:
		time.Sleep(c.delay)
		if !strings.HasPrefix(name, c.name) {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		io.WriteString(w, aPod(name, 1))
	case r.URL.Path != "/api/v1/namespaces/shop/pods":
		io.WriteString(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case q.Get("watch") != "":
		c.watch(w, r, q.Get("labelSelector"))
	case q.Get("labelSelector") != "":
		io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"20000"},"items":[]}`)
	default:
		w.Header().Set("Content-Length", strconv.Itoa(len(c.pods)))
		w.Write(c.pods)
	}
}

func (c *memberFake) watch(w http.ResponseWriter, r *http.Request, what string) {
	push := http.NewResponseController(w).Flush
	push()
	send := func(i int, name string) {
		fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", aPod(name, 20001+i))
	}
	switch what {
	case "is=flood":
		for i := range floodEvents {
			send(i, c.name)
		}
	case "is=paced":
		every := time.NewTicker(10 * time.Millisecond)
		defer every.Stop()
		for i := range pacedEvents {
			<-every.C
			send(i, fmt.Sprintf("%s-%d", c.name, time.Now().UnixNano()))
			push()
		}
	case "is=idle":
		for i := range idleEvents {
			send(i, c.name)
		}
	}
	push()
	<-r.Context().Done()
}

// BenchmarkAdapterMerged (ADP-25) measures the cost of three clusters merged into one. `mca proxy` runs in a separate
// process with three members of 10,000 pods each. In the same run, the same client also queries the members directly.
//
// The budget:
//
//   - A list of all takes <= 1.3 times that of the slowest member, all read directly at once. It needs <= 8 MiB more memory,
//     and begins before the last member's list ends.
//   - Finding the member of an object takes <= 1.5 times the slowest member's answer.
//   - One core merges >= 50,000 watch events a second, p99 <= 5 ms later than directly.
//   - 500 watches of three members need <= 64 MiB.
func BenchmarkAdapterMerged(b *testing.B) {
	pair, ca := selfSigned(b)
	members := []*memberFake{newStock("east", 5*time.Millisecond), newStock("west", 10*time.Millisecond), newStock("north", 20*time.Millisecond)}
	secrets := map[string]map[string]string{}
	var direct []*proxied
	for _, m := range members {
		addr := serveTLS(b, pair, m)
		secrets[m.name] = map[string]string{"server": "https://" + addr, "ca.crt": string(ca), "token": "token"}
		direct = append(direct, newPath(b, m.name, addr, ca, "token", 0))
	}
	a, err := testenv.StartAdapter(b.Context(), b.TempDir(), testenv.AdapterOptions{Server: direct[0].url, CA: ca, Token: "token", Namespace: "shop", Secrets: secrets, Config: `apiVersion: mca.tailplane.dev/v1alpha1
kind: Config
epoch: 1
home: east
clusters:
- {name: east, slot: 0, allowLoopback: true, credentials: {secret: east}}
- {name: west, slot: 1, allowLoopback: true, credentials: {secret: west}}
- {name: north, slot: 2, allowLoopback: true, credentials: {secret: north}}
rules:
- name: shop
  match: {apiGroups: [""], resources: [pods], namespaces: [shop]}
  target: {spread: {members: [east, west, north]}}
`})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { a.Close() })
	mca := adapterPath(b, a)
	const pods = "/api/v1/namespaces/shop/pods"
	for b.Loop() { // everything below is measured once
	}

	// Lists, in turns.
	var whole, apart []time.Duration
	most := 0.0
	for range 4 {
		runtimeRest(b, mca.pid)
		before := anonymous(b, mca.pid)
		stop, peak := sampling(mca.pid)
		began := time.Now()
		n, err := mca.get(pods)
		took := time.Since(began)
		stop()
		if want := len(members[0].pods); err != nil || n < int64(2*want) {
			b.Fatalf("%d bytes: %v", n, err)
		}
		whole, most = append(whole, took), max(most, *peak-before)
		began = time.Now()
		if err := together(len(direct), func(i int) error { _, err := direct[i].get(pods); return err }); err != nil {
			b.Fatal(err)
		}
		apart = append(apart, time.Since(began))
	}
	budgetMost("adapter-merged-list-of-direct", slices.Min(whole).Seconds()/slices.Min(apart).Seconds(), 1.3)
	budgetMost("adapter-merged-list-memory-MiB", most/(1<<20), 8)

	// Objects whose member is not cached yet, and then the same objects again.
	var found, learned, slowest []time.Duration
	for i := range probedOwners {
		for _, of := range []struct {
			p    *proxied
			took *[]time.Duration
		}{{mca, &found}, {mca, &learned}, {direct[2], &slowest}} {
			began := time.Now()
			if _, err := of.p.get(fmt.Sprintf("%s/north-probed-%d", pods, i)); err != nil {
				b.Fatal(err)
			}
			*of.took = append(*of.took, time.Since(began))
		}
	}
	budgetMost("adapter-owner-probe-of-slowest", (median(found)-median(learned)).Seconds()/median(slowest).Seconds(), 1.5)

	// Watches.
	rv := position(b, mca, pods)
	open := func(ctx context.Context, p *proxied, what, rv string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, "GET", p.url+pods+"?watch=1&allowWatchBookmarks=true&labelSelector=is%3D"+what+"&resourceVersion="+rv, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+p.token)
		res, err := p.client.Do(r)
		if err == nil && res.StatusCode != http.StatusOK {
			res.Body.Close()
			err = errors.New(res.Status)
		}
		return res, err
	}
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	before := processorTime(b, mca.pid)
	res, err := open(ctx, mca, "flood", rv)
	if err != nil {
		b.Fatal(err)
	}
	if err := events(res, len(members)*floodEvents, nil); err != nil {
		b.Fatal(err)
	}
	budgetFloor("adapter-watch-events-per-core-second", float64(len(members)*floodEvents)/(processorTime(b, mca.pid)-before).Seconds(), 50_000)

	late := make([][]time.Duration, 2) // directly, and through the adapter
	if err := together(2, func(i int) error {
		p, at, n := direct[0], "20000", pacedEvents
		if i == 1 {
			p, at, n = mca, rv, len(members)*pacedEvents
		}
		res, err := open(ctx, p, "paced", at)
		if err != nil {
			return err
		}
		return events(res, n, func(name string) {
			_, sent, _ := strings.Cut(name, "-")
			if nano, err := strconv.ParseInt(sent, 10, 64); err == nil {
				late[i] = append(late[i], time.Since(time.Unix(0, nano)))
			}
		})
	}); err != nil {
		b.Fatal(err)
	}
	for i := range late {
		slices.Sort(late[i])
	}
	p99 := func(d []time.Duration) float64 { return d[len(d)*99/100].Seconds() * 1000 }
	budgetMost("adapter-watch-p99-added-ms", p99(late[1])-p99(late[0]), 5)

	runtimeRest(b, mca.pid)
	rest := anonymous(b, mca.pid)
	watching, end := context.WithCancel(ctx)
	defer end()
	for range idleWatches { // one after the other, as clients do; only the remaining memory counts
		res, err := open(watching, mca, "idle", rv)
		if err != nil {
			b.Fatal(err)
		}
		defer res.Body.Close()
		if err := read(res, len(members)*idleEvents, nil); err != nil {
			b.Fatal(err)
		}
	}
	budgetMost("adapter-500-watches-MiB", (anonymous(b, mca.pid)-rest)/(1<<20), 64)
}

// together runs do n times in parallel and returns the errors.
func together(n int, do func(int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// runtimeRest waits until a process has used almost no CPU time for a second.
func runtimeRest(b *testing.B, pid int) {
	b.Helper()
	for range 60 {
		before := processorTime(b, pid)
		time.Sleep(time.Second)
		if processorTime(b, pid)-before <= 20*time.Millisecond {
			return
		}
	}
	b.Fatal("the adapter does not come to rest")
}

// sampling samples a process's memory until stop is called. peak is then the maximum.
func sampling(pid int) (stop func(), peak *float64) {
	peak = new(float64)
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		every := time.NewTicker(5 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-over:
				return
			case <-every.C:
				if now, err := rssAnon(pid); err == nil {
					*peak = max(*peak, now)
				}
			}
		}
	})
	return func() { close(over); wg.Wait() }, peak
}

// position returns the resourceVersion of the merged collection at which watches start.
func position(b *testing.B, p *proxied, path string) string {
	b.Helper()
	r, err := http.NewRequest("GET", p.url+path+"?labelSelector=is%3Dnone", nil)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	res, err := p.client.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil || list.Metadata.ResourceVersion == "" {
		b.Fatalf("%s: no position: %v", res.Status, err)
	}
	return list.Metadata.ResourceVersion
}

// events reads n events of a watch and closes it.
func events(res *http.Response, n int, named func(string)) error {
	defer res.Body.Close()
	return read(res, n, named)
}

func read(res *http.Response, n int, named func(string)) error {
	in := bufio.NewReaderSize(res.Body, 64<<10)
	for seen := 0; seen < n; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("after %d of %d events: %w", seen, n, err)
		}
		if !bytes.HasPrefix(line, []byte(`{"type":"MODIFIED"`)) {
			continue // a bookmark
		}
		seen++
		if named != nil {
			_, rest, _ := bytes.Cut(line, []byte(`"name":"`))
			name, _, _ := bytes.Cut(rest, []byte(`"`))
			named(string(name))
		}
	}
	return nil
}
