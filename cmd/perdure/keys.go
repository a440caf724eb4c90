package main

import (
	"fmt"
	"os"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/run/terminal"
)

type keysCmds struct {
	New    keysNewCmd    `cmd:"" help:"@keys_new"`
	Ls     keysLsCmd     `cmd:"" help:"List the holders of keys and when their keys expire."`
	Issue  keysIssueCmd  `cmd:"" help:"@keys_issue"`
	Renew  keysRenewCmd  `cmd:"" help:"@keys_renew"`
	Revoke keysRevokeCmd `cmd:"" help:"@keys_revoke"`
	Token  keysTokenCmd  `cmd:"" help:"@keys_token"`
}

// keysDir is a directory of keys, which holds an authority.
type keysDir struct {
	Dir string `arg:"" help:"@keys_dir" type:"path"`
}

func (f *keysDir) open() (*authority.Authority, error) { return authority.Open(f.Dir, time.Now) }

// validity is the validity of keys.
type validity struct {
	Days int `help:"@keys_days (default ${default})." default:"365" placeholder:"N"`
}

func (g *validity) time() time.Duration { return authority.Days(g.Days) }

type keysNewCmd struct {
	Dir string `arg:"" help:"The directory to create." type:"path"`
	Job string `help:"@keys_job (default ${default})." default:"perdure" placeholder:"NAME"`
	validity
}

func (c *keysNewCmd) Run() error {
	list, err := authority.New(c.Dir, c.Job, c.time(), time.Now)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Each directory in %s is for one role; copy it to the machines of that role. Never copy the "+
		"directory ca.\n", c.Dir)
	return terminal.PrintHolders(stdout, list, false)
}

type keysLsCmd struct {
	keysDir
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *keysLsCmd) Run() error {
	a, err := c.open()
	if err != nil {
		return err
	}
	list, record, err := a.List()
	if err != nil {
		return err
	}
	terminal.PrintIncomplete(os.Stderr, record)
	return terminal.PrintHolders(stdout, list, c.JSON)
}

type keysIssueCmd struct {
	keysDir
	Role string `arg:"" help:"@keys_role"`
	Name string `arg:"" help:"The name of the machine or person."`
	validity
}

func (c *keysIssueCmd) Run() error {
	a, err := c.open()
	if err != nil {
		return err
	}
	h, err := a.Issue(keys.Role(c.Role), c.Name, c.time())
	if err != nil {
		return err
	}
	return terminal.PrintHolders(stdout, []authority.Holder{h}, false)
}

type keysTokenCmd struct {
	keysDir
	Role string        `help:"@keys_token_role" required:"" placeholder:"ROLE"`
	For  time.Duration `help:"@keys_token_for" required:"" placeholder:"TIME"`
	Name string        `help:"@keys_token_name (default ${default})." default:"token" placeholder:"NAME"`
}

func (c *keysTokenCmd) Run() error {
	a, err := c.open()
	if err != nil {
		return err
	}
	t, text, err := a.Token(keys.Role(c.Role), c.Name, c.For)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "The token of %s is valid until %s; to revoke it earlier: perdure keys revoke %s %s\n",
		t.Identity,
		t.Until.Format(time.RFC3339), c.Dir, keys.Serial(t.Serial))
	_, err = fmt.Fprintln(stdout, text)
	return err
}

type keysRenewCmd struct {
	keysDir
	Names []string `arg:"" optional:"" name:"name" help:"@keys_names"`
	validity
}

func (c *keysRenewCmd) Run() error {
	a, err := c.open()
	if err != nil {
		return err
	}
	list, err := a.Renew(c.Names, c.time())
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "Copy these directories to the machines that use them; running processes reload them. "+
		"Earlier keys stay valid until they expire or are revoked.")
	return terminal.PrintHolders(stdout, list, false)
}

type keysRevokeCmd struct {
	keysDir
	Names []string `arg:"" name:"name" help:"@keys_revoke_names"`
}

func (c *keysRevokeCmd) Run() error {
	a, err := c.open()
	if err != nil {
		return err
	}
	done, err := a.Revoke(c.Names)
	if err != nil {
		return err
	}
	terminal.PrintIncomplete(os.Stderr, done.Completeness)
	terminal.PrintRevoked(stdout, done.Revoked)
	fmt.Fprintf(stdout, "Copy %s into the key directories on all machines, coordinators and servers first. Within a "+
		"second they close connections with revoked keys and reject new ones.\n", done.File)
	return nil
}
