# Named by CMAKE_TOOLCHAIN_FILE: CMake reads hook.cmake right after Horovod's own project() line,
# late enough that the compiler is known and early enough that every target still listens.
set(CMAKE_PROJECT_horovod_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/hook.cmake")
