# Debian packages of the three programs, once they are built:
#   cpack --config build/release/CPackConfig.cmake
#
# Services are separate components that only packages include: a plain
# `cmake --install` does not change /etc.
foreach(program server worker)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/${program}.env
          DESTINATION /etc/cohort COMPONENT ${program}-service EXCLUDE_FROM_ALL)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/shard.env
        DESTINATION /etc/cohort COMPONENT server-service EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/cohort-server.service
              ${PROJECT_SOURCE_DIR}/deploy/systemd/cohort-shard.service
        DESTINATION lib/systemd/system COMPONENT server-service EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/cohort-worker@.service
        DESTINATION lib/systemd/system COMPONENT worker-service EXCLUDE_FROM_ALL)
foreach(package cohort-server cohort-worker cohortctl)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE
          DESTINATION share/doc/${package} RENAME copyright COMPONENT ${package})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cohort)
set(CPACK_PACKAGE_CONTACT "The Cohort authors")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL
    cohort-server server-service cohort-worker worker-service cohortctl)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENT_COHORT-SERVER_GROUP server)
set(CPACK_COMPONENT_SERVER-SERVICE_GROUP server)
set(CPACK_COMPONENT_COHORT-WORKER_GROUP worker)
set(CPACK_COMPONENT_WORKER-SERVICE_GROUP worker)
set(CPACK_COMPONENT_COHORTCTL_GROUP ctl)
set(CPACK_STRIP_FILES ON)
# The packages contain the built files, and install into /usr and /etc.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)

set(CPACK_DEBIAN_SERVER_PACKAGE_NAME cohort-server)
set(CPACK_DEBIAN_WORKER_PACKAGE_NAME cohort-worker)
set(CPACK_DEBIAN_CTL_PACKAGE_NAME cohortctl)
set(CPACK_DEBIAN_SERVER_DESCRIPTION
    "Parameter server: holds a model's weights while workers train it")
set(CPACK_DEBIAN_WORKER_DESCRIPTION
    "Computes gradients for a Cohort parameter server")
set(CPACK_DEBIAN_CTL_DESCRIPTION
    "Looks at a Cohort run that goes on, and changes it")
set(CPACK_DEBIAN_SERVER_PACKAGE_RECOMMENDS cohortctl)
# LibTorch also runs on the generic BLAS, four times slower.
set(CPACK_DEBIAN_WORKER_PACKAGE_RECOMMENDS
    "libopenblas0-pthread, dataset-fashion-mnist")
set(server_unit "cohort-server.service cohort-shard.service")
set(worker_unit "'cohort-worker@*.service'")
set(server_conffiles "/etc/cohort/server.env\n/etc/cohort/shard.env\n")
set(worker_conffiles "/etc/cohort/worker.env\n")
foreach(program server worker)
  # An upgrade keeps edited configuration.
  file(WRITE ${PROJECT_BINARY_DIR}/${program}/conffiles
       "${${program}_conffiles}")
  foreach(script postinst postrm)
    configure_file(${PROJECT_SOURCE_DIR}/deploy/systemd/reload.sh
                   ${PROJECT_BINARY_DIR}/${program}/${script} COPYONLY)
  endforeach()
  set(unit "${${program}_unit}")
  configure_file(${PROJECT_SOURCE_DIR}/deploy/systemd/stop.sh.in
                 ${PROJECT_BINARY_DIR}/${program}/prerm @ONLY
                 FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
                                  GROUP_READ GROUP_EXECUTE WORLD_READ
                                  WORLD_EXECUTE)
  string(TOUPPER ${program} name)
  set(CPACK_DEBIAN_${name}_PACKAGE_CONTROL_EXTRA
      ${PROJECT_BINARY_DIR}/${program}/conffiles
      ${PROJECT_BINARY_DIR}/${program}/postinst
      ${PROJECT_BINARY_DIR}/${program}/postrm
      ${PROJECT_BINARY_DIR}/${program}/prerm)
endforeach()
include(CPack)
