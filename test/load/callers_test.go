package load

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// callers simulates more people than a tailnet on two cores can have: ten thousand nodes would be ten thousand
// WireGuard devices in this process. They send requests over HTTP on loopback to a separate sign-in service.
// Everything behind its listener is the product: the HTTP API, the decision, the service, the store with the access
// server's ServiceAccount, and the audit log. Only the caller's identity comes from a header instead of the tailnet.
// The tailnet's query costs p50 0.13 ms (docs/benchmarks.md, Identity).
type callers struct {
	base  string
	http  *http.Transport
	close func() error
}

// crowdTailnet differs from the environment's tailnet. The access server's guard ignores sign-ins of other tailnets.
// With its own tailnet it would end these sign-ins, because their devices do not exist there.
const crowdTailnet = "crowd.example"

func newCrowd(b *testing.B, r *testenv.Env) *callers {
	b.Helper()
	kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(b.Context(), testenv.SystemNamespace, "tailplane-access", b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	config, err := kube.Config(kubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	store, err := controller.NewStore(config, testenv.SigninNamespace, signin.TokenRules{Max: 24 * time.Hour, MaxLife: 24 * time.Hour, RequireAdmissionPolicy: true}, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	record, err := audit.Open(audit.Config{Path: filepath.Join(b.TempDir(), "audit.jsonl"), Cluster: "east", Role: "access", Key: audit.GenerateKey(), Log: log, Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	policy := access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view", "edit"}, Min: access.MinPeriod, Max: 24 * time.Hour,
		Reserved: []string{testenv.SystemNamespace, testenv.SigninNamespace}}
	way := &httpapi.Server{
		Names: func() []string { return []string{"127.0.0.1"} }, Record: record.Write, Log: log, Now: time.Now, Identify: identify,
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
	}
	desk := &signin.Service{Store: store, Cluster: signin.ClusterInfo{Name: "east", ServerURL: r.Cluster.Server, CAData: r.Cluster.CA}, Prefix: "tka-",
		MaxPerLogin: 10, RetryAfter: time.Second, MaxWait: 30 * time.Second, Now: time.Now}
	ctx, stop := context.WithCancel(context.WithoutCancel(b.Context()))
	var wg sync.WaitGroup
	var storeErr, wayErr error
	wg.Go(func() { storeErr = store.Run(ctx) })
	wg.Go(func() { wayErr = way.Run(ctx, ln, nil, desk.Routes()...) })
	c := &callers{base: "http://" + ln.Addr().String(), http: &http.Transport{MaxIdleConnsPerHost: 1000}}
	c.close = sync.OnceValue(func() error {
		stop()
		wg.Wait()
		return errors.Join(storeErr, wayErr, record.Close())
	})
	b.Cleanup(func() {
		if err := c.close(); err != nil {
			b.Error(err)
		}
	})
	return c
}

const personHeader = "Load-Person"

// identify takes the caller's identity from a header without verification.
func identify(r *http.Request) (access.Caller, error) {
	name := r.Header.Get(personHeader)
	login, err := access.ParseLogin(name + "@" + crowdTailnet)
	if err != nil {
		return access.Caller{}, err
	}
	id := sha256.Sum256([]byte(name))
	return access.Caller{Login: login, DisplayName: name, UserID: name, Device: access.Device{ID: "n" + hex.EncodeToString(id[:8]) + "CNTRL", Name: name + "-laptop." + crowdTailnet},
		Tailnet: crowdTailnet, Via: access.ViaTailnet, Rules: []json.RawMessage{json.RawMessage(`{"role": "view", "period": "8h"}`)}}, nil
}

// client returns the client of one person of the crowd.
func (c *callers) client(name string) httpapi.Client {
	return httpapi.Client{Base: c.base, HTTP: &http.Client{Transport: named{name, c.http}, Timeout: 2 * time.Minute}}
}

type named struct {
	name string
	http.RoundTripper
}

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(personHeader, n.name)
	return n.RoundTripper.RoundTrip(r)
}

// usable signs in and returns when the kubeconfig is available.
func usable(ctx context.Context, c httpapi.Client) error {
	if _, err := signin.Login.Call(ctx, c, signin.LoginRequest{}); err != nil {
		return fmt.Errorf("login: %w", err)
	}
	k, err := signin.GetKubeconfig.Call(ctx, c, signin.KubeconfigRequest{Wait: httpapi.Duration(30 * time.Second)})
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	if k.Token.Reveal() == "" {
		return errors.New("no token")
	}
	return nil
}

// arrive starts n sign-ins, one every gap, without waiting for earlier ones. It returns the time of each one from its
// due start to its end, in the order of arrival, and the total time.
func (c *callers) arrive(ctx context.Context, prefix string, n int, gap time.Duration) (took []time.Duration, all time.Duration, err error) {
	took = make([]time.Duration, n)
	errs := make([]error, n)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		due := began.Add(time.Duration(i) * gap)
		time.Sleep(time.Until(due))
		wg.Go(func() {
			errs[i] = usable(ctx, c.client(fmt.Sprint(prefix, i)))
			took[i] = time.Since(due)
		})
	}
	wg.Wait()
	return took, time.Since(began), errors.Join(errs...)
}

// sustain runs sign-ins for the duration long, atOnce in parallel. A new person signs in whenever a sign-in is done.
// It returns the duration of each sign-in, and the sign-ins per second in each sixth of the time.
func (c *callers) sustain(ctx context.Context, prefix string, long time.Duration, atOnce int) (took []time.Duration, windows []int, err error) {
	const sixths = 6
	windows = make([]int, sixths)
	began := time.Now()
	var next atomic.Int64
	var mu sync.Mutex
	err = inParallel(atOnce, atOnce, func(int) error {
		for {
			start := time.Now()
			if start.Sub(began) >= long {
				return nil
			}
			if err := usable(ctx, c.client(fmt.Sprint(prefix, next.Add(1)))); err != nil {
				return err
			}
			if now := time.Now(); now.Sub(began) < long {
				mu.Lock()
				took = append(took, now.Sub(start))
				windows[now.Sub(began)*sixths/long]++
				mu.Unlock()
			}
		}
	})
	for i := range windows {
		windows[i] = int(float64(windows[i]) / (long / sixths).Seconds())
	}
	return took, windows, err
}

// press signs n people in, atOnce in parallel.
func (c *callers) press(ctx context.Context, prefix string, n, atOnce int) (all time.Duration, err error) {
	began := time.Now()
	err = inParallel(n, atOnce, func(i int) error { return usable(ctx, c.client(fmt.Sprint(prefix, i))) })
	return time.Since(began), err
}

// inParallel calls do for 0 to n-1, atOnce in parallel, and stops at an error.
func inParallel(n, atOnce int, do func(i int) error) error {
	next := make(chan int)
	failed := make(chan error, atOnce)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	var err error
	for i := 0; i < n && err == nil; i++ {
		select {
		case next <- i:
		case err = <-failed:
		}
	}
	close(next)
	wg.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	return err
}
