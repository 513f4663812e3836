from realmlm.cli import main

main()
