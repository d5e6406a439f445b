package accessproxy_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"tailscale.com/ipn/store/mem"
	tailscaleproxy "tailscale.com/k8s-operator/api-proxy"
	"tailscale.com/kube/kubetypes"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// The proxies that the benchmark compares with ours. Each is a process of its own, which is this program with
// contenderVariable set to the name. The name is also the host name of its node.
const (
	bareProxy      = "bare"      // httputil.ReverseProxy with one token for all callers: it identifies nobody
	tailscaleProxy = "tailscale" // the API server proxy of Tailscale's operator, which impersonates the caller
)

const (
	contenderVariable  = "PROXY_CONTENDER"
	controlVariable    = "PROXY_CONTROL"
	authKeyVariable    = "PROXY_AUTHKEY"
	kubeconfigVariable = "PROXY_KUBECONFIG"
	dirVariable        = "PROXY_DIR"
)

const serving = "serving"

func TestMain(m *testing.M) {
	tailnettest.QuietDirect() // like most connections of a tailnet
	if name := os.Getenv(contenderVariable); name != "" {
		if err := contend(name); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// contend serves as a contender until standard input ends.
func contend(name string) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(kubeconfigVariable))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	node := &tsnet.Server{Hostname: name, Dir: os.Getenv(dirVariable), ControlURL: os.Getenv(controlVariable), AuthKey: os.Getenv(authKeyVariable),
		Store: new(mem.Store), Ephemeral: true, UserLogf: func(string, ...any) {}}
	defer node.Close()
	if _, err := node.Up(ctx); err != nil {
		return err
	}
	serve := serveBare
	if name == tailscaleProxy {
		serve = func(ctx context.Context, node *tsnet.Server, config *rest.Config) error {
			p, err := tailscaleproxy.NewAPIServerProxy(zap.NewNop().Sugar(), config, node, kubetypes.APIServerProxyModeAuth, true)
			if err != nil {
				return err
			}
			return p.Run(ctx)
		}
	}
	ended := make(chan error, 2)
	go func() { ended <- serve(ctx, node, config) }()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	fmt.Println(serving)
	return <-ended
}

// serveBare serves a reverse proxy of the standard library, with HTTP/1.1 and HTTP/2 on both sides.
func serveBare(_ context.Context, node *tsnet.Server, config *rest.Config) error {
	to, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(config.CAData) {
		return errors.New("the kubeconfig has no CA")
	}
	local, err := node.LocalClient()
	if err != nil {
		return err
	}
	ln, err := node.Listen("tcp", ":443")
	if err != nil {
		return err
	}
	srv := &http.Server{
		TLSConfig: &tls.Config{GetCertificate: local.GetCertificate},
		Handler: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Header.Set("Authorization", "Bearer "+config.BearerToken)
			},
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, DisableCompression: true},
		},
	}
	return srv.ServeTLS(ln, "", "")
}

// startContender starts a contender with the rights of a ServiceAccount, and returns its process ID when the person can
// reach it.
func startContender(b *testing.B, r *testenv.Env, p *testenv.Person, name, account string) (pid int) {
	b.Helper()
	dir := b.TempDir()
	kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(b.Context(), "default", account, dir)
	if err != nil {
		b.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), tailnettest.ChildEnv()...), r.Net.HTTPSEnv()...)
	cmd.Env = append(cmd.Env, contenderVariable+"="+name, controlVariable+"="+r.Net.ControlURL(), kubeconfigVariable+"="+kubeconfig, dirVariable+"="+dir,
		authKeyVariable+"="+r.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}}))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := cmp.Or(stdin.Close(), cmd.Wait()); err != nil {
			b.Errorf("%s: %v", name, err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != serving+"\n" {
		b.Fatalf("%s: %q: %v", name, line, err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	if err := r.Net.WaitPeer(ctx, p.Node, name); err != nil {
		b.Fatal(err)
	}
	return cmd.Process.Pid
}
