import sys


def main() -> None:
    """The command; it can be stopped while it still loads, too."""
    try:
        from realmlm import cli

        cli.main()
    except KeyboardInterrupt:  # before the command could say what is kept
        sys.exit(130)


if __name__ == "__main__":
    main()
