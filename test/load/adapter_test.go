package load

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// bulkSize is the size in bytes of an answer that is large enough to measure its transfer rate.
const bulkSize = 64 << 20

// selfSigned creates a self-signed certificate for the loopback address.
func selfSigned(b *testing.B) (tls.Certificate, []byte) {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		b.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

func serveTLS(b *testing.B, pair tls.Certificate, h http.Handler) (addr string) {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: h, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}
	b.Cleanup(func() { srv.Close() })
	go srv.ServeTLS(ln, "", "")
	return ln.Addr().String()
}

// BenchmarkBareProxy is not a measurement. It is the baseline: a bare httputil.ReverseProxy in a separate process,
// which the next benchmark starts.
func BenchmarkBareProxy(b *testing.B) {
	dir := os.Getenv("BARE_PROXY_DIR")
	if dir == "" {
		b.Skip("SKIP yardstick: the measurement of the adapter starts it")
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		b.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	to := &url.URL{Scheme: "https", Host: os.Getenv("BARE_PROXY_TO")}
	pair, own := selfSigned(b)
	addr := serveTLS(b, pair, &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Header.Set("Authorization", "Bearer token") },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, DisableCompression: true},
	})
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "own.crt"), own, 0o600), os.WriteFile(filepath.Join(dir, "addr.new"), []byte(addr), 0o600),
		os.Rename(filepath.Join(dir, "addr.new"), filepath.Join(dir, "addr"))); err != nil {
		b.Fatal(err)
	}
	io.Copy(io.Discard, os.Stdin) // until the parent process has ended
}

// startBare starts the baseline.
func startBare(b *testing.B, ca []byte, to string) (addr string, roots []byte, pid int) {
	b.Helper()
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600); err != nil {
		b.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$", "-test.bench=^BenchmarkBareProxy$", "-test.benchtime=1x")
	cmd.Env = append(os.Environ(), "BARE_PROXY_DIR="+dir, "BARE_PROXY_TO="+to)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stdin.Close(); cmd.Process.Kill(); cmd.Wait() })
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if at, err := os.ReadFile(filepath.Join(dir, "addr")); err == nil {
			if roots, err = os.ReadFile(filepath.Join(dir, "own.crt")); err == nil {
				return string(at), roots, cmd.Process.Pid
			}
		}
	}
	b.Fatal("the yardstick did not start")
	return "", nil, 0
}

// A proxied is one of the paths to the cluster that the benchmark compares.
type proxied struct {
	name, url, token string
	client           *http.Client
	pid              int // 0 means no process
	took             []time.Duration
}

func newPath(b *testing.B, name, addr string, roots []byte, token string, pid int) *proxied {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, DisableCompression: true}
	b.Cleanup(tr.CloseIdleConnections)
	return &proxied{name: name, url: "https://" + addr, token: token, client: &http.Client{Transport: tr}, pid: pid}
}

func (p *proxied) get(path string) (int64, error) {
	r, err := http.NewRequest("GET", p.url+path, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	res, err := p.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, errors.New(res.Status)
	}
	return io.Copy(io.Discard, res.Body)
}

// anonymous returns the private memory of a process in bytes.
func anonymous(b *testing.B, pid int) float64 {
	b.Helper()
	n, err := rssAnon(pid)
	if err != nil {
		b.Skip("SKIP memory: this machine does not tell what a process has: " + err.Error())
	}
	return n
}

func rssAnon(pid int) (bytes float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.Atoi(strings.Fields(kb)[0])
			return float64(n) * 1024, err
		}
	}
	return 0, errors.New("no RssAnon")
}

// idleMemory returns the memory of an adapter after 1,000 requests and one idle minute.
func idleMemory(b *testing.B, cluster string, ca []byte) float64 {
	b.Helper()
	a, err := testenv.StartAdapter(b.Context(), b.TempDir(), testenv.AdapterOptions{Server: "https://" + cluster, CA: ca, Token: "token", Namespace: "shop", Args: []string{"--log-level", "info"}})
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	p := adapterPath(b, a)
	for range 1000 {
		if _, err := p.get(object); err != nil {
			b.Fatal(err)
		}
	}
	time.Sleep(time.Minute) // the budget is for an idle adapter
	return anonymous(b, a.PID())
}

// adapterPath returns the path through an adapter, as an application of its pod uses it.
func adapterPath(b *testing.B, a *testenv.Adapter) *proxied {
	b.Helper()
	own, err := os.ReadFile(filepath.Join(a.Share, "ca.crt"))
	if err != nil {
		b.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(a.Share, "token"))
	if err != nil {
		b.Fatal(err)
	}
	return newPath(b, "adapter", a.Address, own, string(token), a.PID())
}

const object = "/api/v1/namespaces/shop/configmaps/settings"

// BenchmarkAdapterHop (ADP-25) measures the cost that `mca proxy` adds to a request. It compares the adapter with the
// cluster itself and with a bare httputil.ReverseProxy. Each is a separate process, and they take turns within one
// run.
//
// The budget: p50 added <= 0.15 ms, p99 <= 5 ms; >= 5,000 requests/s per core; bulk >= 85 % of direct; within 1.2x of
// the bare one; <= 10 MB idle.
func BenchmarkAdapterHop(b *testing.B) {
	pair, ca := selfSigned(b)
	// These are not package variables: the baseline's process is this program too. With a larger heap it would
	// collect garbage less often.
	objectBody := []byte(`{"kind":"ConfigMap","data":{"text":"` + strings.Repeat("x", 2000) + `"}}`)
	bulkBody := make([]byte, bulkSize)
	cluster := serveTLS(b, pair, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(r.URL.Path, "/openapi") {
			w.Header().Set("Content-Length", strconv.Itoa(len(bulkBody)))
			w.Write(bulkBody)
			return
		}
		w.Write(objectBody)
	}))
	began := time.Now()
	a, err := testenv.StartAdapter(b.Context(), b.TempDir(), testenv.AdapterOptions{Server: "https://" + cluster, CA: ca, Token: "token", Namespace: "shop", Args: []string{"--log-level", "info"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { a.Close() })
	started := time.Since(began)
	bareAddr, bareRoots, barePID := startBare(b, ca, cluster)
	direct := newPath(b, "direct", cluster, ca, "token", 0)
	bare := newPath(b, "bare", bareAddr, bareRoots, "token", barePID)
	mca := adapterPath(b, a)
	all := []*proxied{direct, bare, mca}
	for _, p := range all {
		for range 200 { // opens connections and runs one-time initialisation
			if _, err := p.get(object); err != nil {
				b.Fatalf("%s: %v", p.name, err)
			}
		}
	}
	for b.Loop() {
		for _, p := range all {
			for range 20 {
				began := time.Now()
				if _, err := p.get(object); err != nil {
					b.Fatalf("%s: %v", p.name, err)
				}
				p.took = append(p.took, time.Since(began))
			}
		}
	}
	quantile := func(p *proxied, q float64) time.Duration {
		slices.Sort(p.took)
		return p.took[int(q*float64(len(p.took)-1))]
	}
	rate := map[string]float64{} // requests per second of the process's own CPU time
	for _, p := range []*proxied{bare, mca} {
		const workers, each = 16, 1000
		before := processorTime(b, p.pid)
		var wg sync.WaitGroup
		failed := make(chan error, workers)
		for range workers {
			wg.Go(func() {
				for range each {
					if _, err := p.get(object); err != nil {
						failed <- err
						return
					}
				}
			})
		}
		wg.Wait()
		select {
		case err := <-failed:
			b.Fatalf("%s: %v", p.name, err)
		default:
		}
		rate[p.name] = workers * each / (processorTime(b, p.pid) - before).Seconds()
	}
	bulk := map[string]float64{}
	for range 3 { // in turns; the best result of each counts
		for _, p := range all {
			began := time.Now()
			n, err := p.get("/openapi/v2")
			if err != nil || n != int64(len(bulkBody)) {
				b.Fatalf("%s: %d bytes: %v", p.name, n, err)
			}
			bulk[p.name] = max(bulk[p.name], float64(n)/time.Since(began).Seconds())
		}
	}
	idle := idleMemory(b, cluster, ca)

	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	budgetMost("adapter-hop-p50-added-ms", ms(quantile(mca, 0.5)-quantile(direct, 0.5)), 0.15)
	budgetMost("adapter-hop-p99-added-ms", ms(quantile(mca, 0.99)-quantile(direct, 0.99)), 5)
	budgetMost("adapter-hop-p50-of-bare", float64(quantile(mca, 0.5))/float64(quantile(bare, 0.5)), 1.2)
	budgetMost("adapter-cpu-of-bare", rate["bare"]/rate["adapter"], 1.2)
	budgetFloor("adapter-requests-per-core-second", rate["adapter"], 5000)
	budgetFloor("adapter-bulk-of-direct", bulk["adapter"]/bulk["direct"], 0.85)
	budgetFloor("adapter-bulk-of-bare", bulk["adapter"]/bulk["bare"], 1/1.2)
	budgetMost("adapter-idle-anonymous-MB", idle/1e6, 10)
	budgetMost("adapter-start-to-ready-ms", ms(started), 100)
}
