// Package cluster runs etcd, kube-apiserver and some controllers in this process: one TCP port on loopback, etcd on
// Unix sockets, no root. No failure is silent: if a part ends by itself, the whole cluster ends with its reason. A
// stop is complete when all parts have returned.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"

	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	basecompatibility "k8s.io/component-base/compatibility"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	apiapp "k8s.io/kubernetes/cmd/kube-apiserver/app"
	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/tailplane/tailplane/testbed/devcluster/fakenode"
	"github.com/tailplane/tailplane/testbed/devcluster/parts"
)

// startLimit bounds each stage of the start. A start takes about three seconds on an idle machine and half a minute
// on one with a load of twenty.
const startLimit = 120 * time.Second

// Options configure the cluster.
type Options struct {
	Name          string   // in certificates and the kubeconfig
	Dir           string   // absolute; contains data, certificates, keys, port and logs, kept over restarts
	NoControllers bool     // API server only
	FakeNode      bool     // a Node that reports every pod ready; see package fakenode
	Args          []string // additional kube-apiserver flags, after the default ones
}

// Info is the data that a client of a ready cluster needs.
type Info struct {
	Kubeconfig string `json:"kubeconfig"` // path of the admin's kubeconfig (group system:masters)
	Server     string `json:"server"`     // https://127.0.0.1:port
	CA         string `json:"ca"`         // PEM of the CA of the server's certificate
	Version    string `json:"version"`    // such as v1.37.0
	PID        int    `json:"pid"`
}

// Run runs a cluster until ctx ends. It calls ready once: when /readyz is green, the controllers' caches are filled
// and the namespace "default" has its root CA and ServiceAccount. Run returns nil if ctx ended the cluster. It
// returns only after everything has stopped: node and controllers first, then the API server, then etcd.
func Run(ctx context.Context, o Options, ready func(Info) error) error {
	st, err := openState(ctx, o.Dir, o.Name)
	if err != nil {
		return err
	}
	defer st.close()

	// run ends when ctx ends or a part has failed. The code below ends the parts one after the other.
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	etcd, err := startEtcd(run, st)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer stopped("etcd", etcd.Close)
	go func() {
		if err, ok := <-etcd.Err(); ok {
			fail(fmt.Errorf("etcd: %w", err))
		}
	}()

	if err := st.pki.kubeconfig(st.file("kubeconfig"), o.Name, st.server()); err != nil {
		return err
	}
	ca, err := os.ReadFile(st.pki.ca())
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", st.file("kubeconfig"))
	if err != nil {
		return err
	}
	config.QPS = -1

	stopServer, err := startServer(run, fail, st, o)
	if err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	defer stopped("kube-apiserver", stopServer)
	if err := waitOK(run, config, "/readyz"); err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}

	if !o.NoControllers {
		stopControllers, err := startControllers(run, fail, config, ca, st.pki.serviceAccount())
		if err != nil {
			return fmt.Errorf("controllers: %w", err)
		}
		defer stopped("controllers", stopControllers)
		for _, made := range []string{"configmaps/kube-root-ca.crt", "serviceaccounts/default"} {
			if err := waitOK(run, config, "/api/v1/namespaces/default/"+made); err != nil {
				return fmt.Errorf("controllers: %w", err)
			}
		}
	}
	if o.FakeNode {
		stopNode, err := startNode(run, fail, config, st.pki)
		if err != nil {
			return fmt.Errorf("fake node: %w", err)
		}
		defer stopped("fake node", stopNode)
	}
	if err := ready(Info{
		Kubeconfig: st.file("kubeconfig"), Server: st.server(), CA: string(ca),
		Version: version.Get().GitVersion, PID: os.Getpid(),
	}); err != nil {
		return err
	}
	<-run.Done()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(run)
}

// stopped stops a part and logs the duration.
func stopped(part string, stop func()) {
	start := time.Now()
	stop()
	klog.InfoS("stopped", "part", part, "took", time.Since(start))
}

func startEtcd(ctx context.Context, st *state) (*embed.Etcd, error) {
	client := url.URL{Scheme: "unix", Path: st.file("etcd.sock")}
	peer := url.URL{Scheme: "unix", Path: st.file("peer.sock")}
	c := embed.NewConfig()
	c.Dir = st.file("etcd")
	c.Logger, c.LogLevel, c.LogOutputs = "zap", "error", []string{st.file("etcd.log")}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.Name + "=" + peer.String()
	c.QuotaBackendBytes = 2 << 30
	// A killed process loses no data by this. Only a power failure does, and no test's state outlives the machine.
	c.UnsafeNoFsync = true
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case err = <-e.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(startLimit):
		err = fmt.Errorf("not ready within %v", startLimit)
	}
	e.Close()
	return nil, err
}

// startServer starts kube-apiserver on st's listener. stop stops it and waits until it has returned.
func startServer(ctx context.Context, fail context.CancelCauseFunc, st *state, o Options) (stop func(), err error) {
	// The server applies its logging options a second time, which the library treats as an error by default.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged

	s := apioptions.NewServerRunOptions()
	// A separate registry, so that nothing depends on the process-wide one.
	registry := basecompatibility.NewComponentGlobalsRegistry()
	if err := registry.Register(basecompatibility.DefaultKubeComponent,
		compatibility.DefaultBuildEffectiveVersion(), utilfeature.DefaultMutableFeatureGate.DeepCopy()); err != nil {
		return nil, err
	}
	s.GenericServerRunOptions.ComponentGlobalsRegistry = registry
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, f := range s.Flags().FlagSets {
		flags.AddFlagSet(f)
	}
	p := st.pki
	if err := flags.Parse(append([]string{
		"--etcd-servers=unix://" + st.file("etcd.sock"), "--etcd-compaction-interval=5m",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", st.port()),
		"--advertise-address=127.0.0.1",
		// EndpointSlices reject loopback addresses, so the Service "kubernetes" has no endpoint.
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + p.serverCert(), "--tls-private-key-file=" + p.serverKey(),
		"--client-ca-file=" + p.ca(),
		"--requestheader-client-ca-file=" + p.frontCA(), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		// The node's name does not resolve, and its address is loopback.
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-certificate-authority=" + p.ca(),
		"--kubelet-client-certificate=" + p.adminCert(), "--kubelet-client-key=" + p.adminKey(),
		"--proxy-client-cert-file=" + p.frontCert(), "--proxy-client-key-file=" + p.frontKey(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.serviceAccount(), "--service-account-signing-key-file=" + p.serviceAccount(),
		"--service-cluster-ip-range=10.96.0.0/16",
		// For webhooks and aggregated APIs by Service, dial the endpoints: without kube-proxy, a ClusterIP does not
		// work.
		"--enable-aggregator-routing=true",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--profiling=false",
	}, o.Args...)); err != nil {
		return nil, err
	}
	s.SecureServing.Listener = st.listener
	if err := registry.Set(); err != nil {
		return nil, err
	}
	completed, err := s.Complete(ctx)
	if err != nil {
		return nil, err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	name, err := cache.NewInformerName("kube-apiserver-" + o.Name)
	if err != nil {
		return nil, err
	}
	completed.InformerName = name

	// stop ends it and not ctx: the controllers must reach the server until they have ended.
	g := parts.New(context.WithoutCancel(ctx), fail)
	g.Go("kube-apiserver", func(ctx context.Context) error {
		defer name.Release()
		return apiapp.Run(ctx, completed)
	})
	return g.Stop, nil
}

func startNode(ctx context.Context, fail context.CancelCauseFunc, config *rest.Config, p pki) (stop func(), err error) {
	cs, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	// The API server's own certificate is valid for the loopback address, which is also the node's address.
	node, err := fakenode.New(cs, "fake", fakenode.TLS{Cert: p.serverCert(), Key: p.serverKey(), ClientCA: p.ca(), Client: adminName})
	if err != nil {
		return nil, err
	}
	if err := node.Register(ctx); err != nil {
		node.Close()
		return nil, err
	}
	g := parts.New(ctx, fail)
	g.Go("fake node", node.Run)
	g.Go("fake node's streams", node.Serve)
	return g.Stop, nil
}

// waitOK returns when a GET of path by the admin returns 200.
func waitOK(ctx context.Context, config *rest.Config, path string) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not within %v", startLimit))
	defer cancel()
	for last := errors.New("not checked yet"); ; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
		if err != nil {
			return err
		}
		switch r, err := client.Do(req); {
		case err != nil && ctx.Err() == nil:
			last = err
		case err == nil:
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
			last = errors.New(r.Status)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (last: %w)", path, context.Cause(ctx), last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
