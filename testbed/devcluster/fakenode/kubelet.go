package fakenode

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// TLS names the certificate files with which the node serves its API server.
type TLS struct {
	Cert, Key string // of the node
	ClientCA  string // CA of the API server's client certificate
	Client    string // common name in that certificate; others are rejected
}

// kubelet serves the streams of the node's containers: exec, attach, port-forward and logs, with the protocols and
// exit codes of the real kubelet. There are no containers: a [shell] implements a few commands.
type kubelet struct {
	listener net.Listener
	server   *http.Server
	shell    shell
}

func listenKubelet(files TLS) (*kubelet, error) {
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(files.ClientCA)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s contains no certificate", files.ClientCA)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
		NextProtos: []string{"http/1.1"}, // required by SPDY and WebSocket
		VerifyConnection: func(s tls.ConnectionState) error {
			if name := s.PeerCertificates[0].Subject.CommonName; name != files.Client {
				return fmt.Errorf("%q is not the API server", name)
			}
			return nil
		}})
	if err != nil {
		return nil, err
	}
	k := &kubelet{listener: ln, shell: shell{files: map[string]map[string][]byte{}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.logs)
	for _, method := range []string{"GET", "POST"} {
		mux.HandleFunc(method+" /exec/{namespace}/{pod}/{container}", k.exec)
		mux.HandleFunc(method+" /attach/{namespace}/{pod}/{container}", k.attach)
		mux.HandleFunc(method+" /portForward/{namespace}/{pod}", k.portForward)
	}
	k.server = &http.Server{Handler: mux, ReadHeaderTimeout: 30 * time.Second, ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug)}
	return k, nil
}

func (k *kubelet) port() int32 {
	return int32(k.listener.Addr().(*net.TCPAddr).Port)
}

// run serves until ctx ends.
func (k *kubelet) run(ctx context.Context) error {
	context.AfterFunc(ctx, func() { k.server.Close() })
	if err := k.server.Serve(k.listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// podName returns the shell's key of a pod.
func podName(r *http.Request) string { return r.PathValue("namespace") + "/" + r.PathValue("pod") }

func (k *kubelet) exec(w http.ResponseWriter, r *http.Request) {
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := streaming.DefaultConfig
	remotecommand.ServeExec(w, r, &k.shell, podName(r), "", r.PathValue("container"), r.URL.Query()["command"], o, c.StreamIdleTimeout, c.StreamCreationTimeout, c.SupportedRemoteCommandProtocols)
}

func (k *kubelet) attach(w http.ResponseWriter, r *http.Request) {
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := streaming.DefaultConfig
	remotecommand.ServeAttach(w, r, &k.shell, podName(r), "", r.PathValue("container"), o, c.StreamIdleTimeout, c.StreamCreationTimeout, c.SupportedRemoteCommandProtocols)
}

func (k *kubelet) portForward(w http.ResponseWriter, r *http.Request) {
	o, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := streaming.DefaultConfig
	portforward.ServePortForward(w, r, &k.shell, podName(r), "", o, c.StreamIdleTimeout, c.StreamCreationTimeout, c.SupportedPortForwardProtocols)
}

// logs writes three lines, and with follow five more per second.
func (k *kubelet) logs(w http.ResponseWriter, r *http.Request) {
	line := func(n int) error {
		if _, err := fmt.Fprintf(w, "%s line %d\n", r.PathValue("container"), n); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	}
	n := 0
	for ; n < 3; n++ {
		if line(n) != nil {
			return
		}
	}
	if follow, _ := strconv.ParseBool(r.URL.Query().Get("follow")); !follow {
		return
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ; ; n++ {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		if line(n) != nil {
			return
		}
	}
}

// PortForward implements [portforward.PortForwarder]: each port writes its number and then echoes its input.
func (s *shell) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	_, err := fmt.Fprintf(stream, "port %d\n", port)
	if err == nil {
		_, err = io.Copy(stream, stream)
	}
	return err
}

// AttachContainer implements [remotecommand.Attacher]: the process echoes its input.
func (s *shell) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	if out == nil {
		return errors.New("not attached to a process")
	}
	if _, err := io.WriteString(out, "attached\n"); err != nil || in == nil {
		return err
	}
	_, err := io.Copy(out, in)
	return err
}
