package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/audit/auditotlp"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/tailnet"
)

func newNode(set settings.File, log *slog.Logger) (*tailnet.Node, error) {
	var key tailnet.Secret
	if path := set.Tailnet.AuthKeyFile; path != "" {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("tailnet.authKeyFile: %w", err)
		}
		if err != nil {
			log.Warn("the file of the auth key is not there; going on without a key", "path", path)
		}
		key = tailnet.NewSecret(strings.TrimSpace(string(b)))
	}
	t := set.Tailnet
	return tailnet.New(tailnet.Config{Hostname: t.Hostname, Tags: t.Tags, ControlURL: t.ControlURL, AuthKey: key, StateDir: t.StateDir, StateSecret: t.StateSecret,
		Port: t.Port, InsecureHTTP: t.InsecureHTTP, Capability: set.Signin.Capability, Log: log})
}

// exportTime is how long a collector may take for the last of the record.
const exportTime = 5 * time.Second

// openRecord opens the audit record, and returns it beside what closes it. The
// key that signs it is beside the node's state, and made at the first start. The
// OTEL_* variables say whether a collector gets a copy.
func openRecord(ctx context.Context, p *process, info signin.ClusterInfo) (record *audit.Log, closeRecord func() error, err error) {
	dir := p.set.Tailnet.StateDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("tailnet.stateDir: %w", err)
	}
	key, err := audit.LoadKey(filepath.Join(dir, "audit.key"))
	if err != nil {
		return nil, nil, err
	}
	export, err := auditotlp.New(ctx, auditotlp.Config{Service: "tailplaned", Version: info.Version, Cluster: info.Name, Getenv: os.Getenv, Log: p.log})
	if err != nil {
		return nil, nil, err
	}
	c := audit.Config{Path: p.set.Audit.File, Cluster: info.Name, ClusterID: info.ID, Role: string(settings.AccessRole), Software: info.Version,
		Key: key, Required: p.set.Audit.Required, Log: p.log, Now: time.Now}
	if c.Path == "-" {
		c.Path, c.Writer = "", os.Stdout
	}
	if export != nil {
		c.Export = export.Export
	}
	if record, err = audit.Open(c); err != nil {
		return nil, nil, fmt.Errorf("audit.file: %w", err)
	}
	p.log.Info("the audit record is open", "key", key.Public().String())
	p.metrics.Audit(record.Stats)
	return record, func() error {
		err := record.Close()
		if export == nil {
			return err
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTime)
		defer cancel()
		return errors.Join(err, export.Close(last))
	}, nil
}

func limits(l settings.Limits) door.Limits {
	rate := func(r settings.Rate) door.Rate { return door.Rate{PerMinute: r.PerMinute, Burst: r.Burst} }
	return door.Limits{
		Verbs: map[access.Verb]door.Rate{access.SigninLogin: rate(l.Login), access.SigninKubeconfig: rate(l.Kubeconfig)},
		Other: rate(l.Others), All: rate(l.All), WaitersPerCaller: 4, Waiters: 1000, Connections: l.Connections,
	}
}
