package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/proto"
)

// ClientName is the DNS name that Envoy Gateway's client certificate must contain.
const ClientName = "envoy-gateway"

// An Address is the listen address of the server: a TCP address or the path of a Unix socket.
type Address struct{ Network, Addr string }

// ParseAddress parses ":5005", "127.0.0.1:5005", "unix:///run/extension.sock" or
// "unix:/run/extension.sock".
func ParseAddress(s string) (Address, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		path = strings.TrimPrefix(path, "//")
		if !filepath.IsAbs(path) {
			return Address{}, fmt.Errorf("%q: the path of a Unix socket must be absolute", s)
		}
		return Address{"unix", path}, nil
	}
	if _, port, err := net.SplitHostPort(s); err != nil || port == "" {
		return Address{}, fmt.Errorf("%q is neither host:port nor unix:///path", s)
	}
	return Address{"tcp", s}, nil
}

// Private reports whether only users of this machine can connect: a Unix socket or a loopback
// address. The server may run without TLS only on a private address.
func (a Address) Private() bool {
	if a.Network == "unix" {
		return true
	}
	host, _, _ := net.SplitHostPort(a.Addr)
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Listen opens the address. Only the owner and the group can connect to a Unix socket. Listen
// replaces a stale socket file.
func (a Address) Listen(ctx context.Context) (net.Listener, error) {
	var c net.ListenConfig
	if a.Network != "unix" {
		return c.Listen(ctx, a.Network, a.Addr)
	}
	switch i, err := os.Lstat(a.Addr); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case i.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("%s exists and is not a socket", a.Addr)
	default:
		if err := os.Remove(a.Addr); err != nil {
			return nil, err
		}
	}
	ln, err := c.Listen(ctx, a.Network, a.Addr)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(a.Addr, 0o660); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// Run waits for the first snapshot and then serves at the address until ctx ends and the running
// calls are complete. It opens the socket late on purpose. Envoy Gateway waits for a missing
// server, but after an early empty answer it would publish a configuration without Tailplane's
// routes. config may be nil only on a private address.
func (s *Server) Run(ctx context.Context, at Address, config *tls.Config) error {
	if err := s.validate(); err != nil {
		return err
	}
	transport := insecure.NewCredentials()
	switch {
	case config != nil:
		transport = credentials.NewTLS(config)
	case !at.Private():
		return fmt.Errorf("extension server on %s: an address that is not private needs TLS", at.Addr)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.Ready():
	}
	ln, err := at.Listen(ctx)
	if err != nil {
		return fmt.Errorf("extension server: %w", err)
	}
	g := grpc.NewServer(grpc.Creds(transport), grpc.MaxRecvMsgSize(s.MaxMessage), grpc.MaxSendMsgSize(s.MaxMessage),
		grpc.ForceServerCodecV2(deterministicCodec{encoding.GetCodecV2("proto")}), grpc.ConnectionTimeout(10*time.Second),
		grpc.InitialWindowSize(flowControlWindow), grpc.InitialConnWindowSize(flowControlWindow))
	extension.RegisterEnvoyGatewayExtensionServer(g, s)
	states := health.NewServer()
	states.SetServingStatus(extension.EnvoyGatewayExtension_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	grpc_health_v1.RegisterHealthServer(g, states)
	if s.Reflection {
		reflection.Register(g)
	}
	s.open.Store(true)
	defer s.open.Store(false)
	s.Log.Info("extension server started", "address", ln.Addr().String(), "tls", config != nil)
	defer context.AfterFunc(ctx, func() {
		states.Shutdown()
		defer time.AfterFunc(2*s.Deadline, g.Stop).Stop() // calls in progress end at their deadline
		g.GracefulStop()
	})()
	err = g.Serve(ln)
	if ctx.Err() != nil {
		g.GracefulStop() // wait for the other GracefulStop: Serve returns before the last calls end
		return nil
	}
	return fmt.Errorf("extension server: %w", err)
}

// flowControlWindow is the HTTP/2 flow-control window in bytes. With gRPC's default of 64 KiB, Envoy Gateway
// would stop many times while it sends a Translation of 1,000 routes.
const flowControlWindow = 8 << 20

// deterministicCodec is a gRPC codec for protocol buffers that sorts maps. Equal answers have equal
// bytes.
type deterministicCodec struct{ encoding.CodecV2 }

func (c deterministicCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", v)
	}
	b, err := marshal.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Certificates provide the files tls.crt, tls.key and ca.crt of a directory. They are read for each
// connection. If they cannot be read, the last good ones stay in use.
type Certificates struct {
	Dir string

	mu     sync.Mutex
	config *tls.Config
}

// Config returns a TLS configuration that requires a client certificate for ClientName, signed by
// the CA in ca.crt.
func (c *Certificates) Config() (*tls.Config, error) {
	if _, err := c.current(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current() },
	}, nil
}

func (c *Certificates) current() (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	config, err := c.load()
	switch {
	case err == nil:
		c.config = config
	case c.config == nil:
		return nil, err
	}
	return c.config, nil
}

func (c *Certificates) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.Dir, "tls.crt"), filepath.Join(c.Dir, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("extension server's certificate: %w", err)
	}
	pem, err := os.ReadFile(filepath.Join(c.Dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("CA of Envoy Gateway's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", filepath.Join(c.Dir, "ca.crt"))
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2"},
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !slices.Contains(s.PeerCertificates[0].DNSNames, ClientName) {
				return fmt.Errorf("the client's certificate is not for %s", ClientName)
			}
			return nil
		},
	}, nil
}
